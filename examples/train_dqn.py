"""Cycles of whole episodes: all workers play, then the learner learns, then all get the weights.

python examples/train_dqn.py

A plain script without a main guard: workers never import it.
"""

import rookery


def progress(done):
    if done.cycle % 5 == 0:
        print(
            f"cycle {done.cycle}: {done.episodes} episodes, {done.learner_steps} learner steps, "
            f"epsilon {done.epsilon:.2f}, mean return {done.mean_return:.0f}"
        )


agent = rookery.train_dqn(
    n_episodes=2_000,
    num_workers=None,  # usable CPUs - 2, and at least 1
    episodes_per_batch=4,  # each worker plays four in a cycle
    learning_steps_per_batch="adaptive",  # as replay.samples_per_insert says
    env="CartPole-v1",
    seed=0,
    hidden=(128, 128),
    lr=0.004,
    n_step=5,
    prioritized=False,
    warmup=500,
    epsilon_decay=0.9,
    target=195.0,
    max_seconds=30.0,
    callback=progress,
    settings={
        "env.reward_scale": 0.1,
        "algo.target_tau": 0.05,
        "learner.max_grad_norm": 1.0,
        "replay.samples_per_insert": 32.0,
    },
)
path = agent.save("runs/cartpole")
print(f"{len(agent.returns)} episodes, best return {max(agent.returns):.0f}; saved {path}")

again = rookery.DqnAgent.open(path)
greedy = rookery.rollout_worker(again.policy(), episodes=5, epsilon=0.0, seed=100)
print("five greedy episodes:", [round(trajectory.score) for trajectory in greedy])

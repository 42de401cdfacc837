"""Ludo by self-play: against random players, a scripted one, and what the agent was earlier.

python examples/train_ludo.py            # a short look
python examples/train_ludo.py 100000     # so many games
"""

import sys

import rookery

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000


def progress(done):
    if done.cycle % 20 == 0:
        print(f"{done.episodes} games, epsilon {done.epsilon:.2f}, return {done.mean_return:+.2f}")


agent = rookery.train_dqn(
    n_episodes=EPISODES,
    episodes_per_batch=16,
    env="ludo",
    seed=0,
    n_step=3,
    epsilon_decay=0.98,
    callback=progress,
    settings={
        "actor.envs": 64,  # tables of each worker: one network answers them all at once
        "selfplay.snapshot_period": max(100, EPISODES // 5),  # learner steps, one for each game
    },
)
for opponent, rate in agent.win_rates.items():
    print(f"against {opponent} in training: {rate:.0%}")

games = rookery.rollout_worker(agent.policy(), episodes=200, epsilon=0.0, seed=100)
print(f"greedy against random: {sum(game.score > 0 for game in games) / len(games):.0%}")
print("saved", agent.save("runs/ludo"))

"""A short look at whether parallel training works here: four workers, a hundred episodes.

python examples/test_parallel.py
"""

import time

import numpy as np

import rookery

began = time.monotonic()
cycles = []
agent = rookery.train_dqn(
    n_episodes=100,
    num_workers=4,  # on fewer CPUs they take turns, and a warning says so
    episodes_per_batch=2,
    learning_steps_per_batch=8,
    batch_size=32,
    buffer_size=10_000,
    seed=0,
    epsilon_decay=0.99,
    callback=cycles.append,
)
took_s = time.monotonic() - began

last = cycles[-1]
print(
    f"{last.episodes} episodes by 4 workers in {last.cycle} cycles, {took_s:.1f} s with the start"
)
print(f"{last.env_steps} env steps, {last.learner_steps} learner steps, epsilon {last.epsilon:.3f}")
print(f"episodes per minute once all were up: {60 * last.episodes / last.seconds:.0f}")
print(f"mean return {np.mean(agent.returns):.1f}, last loss {last.loss:.4f}")

assert last.episodes == len(agent.returns) == 104, "13 cycles of 4 workers with 2 episodes each"
assert last.learner_steps == 8 * last.cycle, "8 learner steps in every cycle"
assert all(np.isfinite(array).all() for array in agent.get_weights().values())
assert took_s < 60.0, f"it took {took_s:.0f} s"
print("all is well")

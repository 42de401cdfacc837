"""Stable-Baselines3's DQN in training: gradient steps of `train()`, drawing from its own replay.

SB3 has neither double nor dueling DQN nor priorities: it does less work in a step than Rookery.
"""

from collections.abc import Callable

from stable_baselines3 import DQN

STEPS = 8  # in one call of train()
BATCH = 64


def learn(seed: int) -> Callable[[], int]:
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        buffer_size=100_000,
        learning_starts=1_000_000,  # fills replay below without learning
        batch_size=BATCH,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=seed,
    )
    model.learn(5_000)

    def work() -> int:
        model.train(gradient_steps=STEPS, batch_size=BATCH)
        return STEPS

    return work

"""A run that adds rows until it is killed: `python sb3_writer_process.py POOL`."""

import sys

import numpy as np

from rookery import DistributedReplayBuffer, create_distributed_registry
from sb3_steps import POINT, PUSH

ENVS, ROWS = 2, 64


def main(path: str) -> None:
    registry = create_distributed_registry(path=path)
    buffer_id = registry.register_buffer(run_id="writer", algorithm="SAC")
    settings = {"registry": registry, "buffer_id": buffer_id}
    buffer = DistributedReplayBuffer(ROWS, POINT, PUSH, "cpu", n_envs=ENVS, **settings)
    for step in range(1 << 22):
        mark = np.arange(ENVS, dtype=np.float32)[:, None] + (step % 1000) * ENVS
        obs = np.repeat(mark, 3, axis=1)
        action, done = np.repeat(mark, 2, axis=1), np.zeros(ENVS)
        buffer.add(obs, obs + 0.5, action, mark[:, 0], done, [{}] * ENVS)
        if step == ROWS:
            print("full", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

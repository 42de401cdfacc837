"""What sharing costs a run of SB3's, beside the same run with `local_only`, taking turns.

    python benchmarks/share/rookery_cost.py draw --rows 1000000     # microseconds for each batch
    python benchmarks/share/rookery_cost.py train                   # SAC updates, as a share

Four buffers of so many rows of Pendulum's shape, all full; batches of 256 with r = 0.2. The last
line on stdout is `{"value": ...}`: the median over the rounds of what the two differ by.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC

from rookery.sb3.shared_buffer import DistributedReplayBuffer
from rookery.sharing.registry import Registry, create_distributed_registry

BATCH, RATIO, PEERS = 256, 0.2, 3
ROUNDS = {"draw": 60, "train": 16}
PIECES = {"draw": 200, "train": 24}  # of work in one round


def model(registry: Registry, name: str, strategy: str, rows: int) -> SAC:
    buffer_id = registry.register_buffer(run_id=name, algorithm="SAC")
    made = SAC(
        "MlpPolicy",
        gym.make("Pendulum-v1"),
        buffer_size=rows,
        batch_size=BATCH,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={
            "registry": registry,
            "buffer_id": buffer_id,
            "sample_strategy": strategy,
            "cross_sample_ratio": RATIO,
        },
        seed=0,
        device="cpu",
    )
    _, log = made._setup_learn(1_000_000)
    assert log is not None
    buffer = made.replay_buffer
    assert isinstance(buffer, DistributedReplayBuffer)
    fill(buffer)
    return made


def fill(buffer: DistributedReplayBuffer) -> None:
    """Fills a buffer at once: a million calls of `add` would take longer than what is timed."""
    step = np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 1)), np.zeros(1), np.zeros(1)
    buffer.add(*step, [{}])
    rng = np.random.default_rng(0)
    for column in buffer._columns.values():
        column[:] = rng.normal(size=column.shape)
    buffer.dones[:] = buffer.timeouts[:] = 0.0
    assert buffer._ring is not None
    buffer._written = buffer.capacity
    buffer._ring.restart_at(buffer.capacity)
    buffer.pos, buffer.full = 0, True


def timed(work: Callable[[], object], pieces: int) -> float:
    began = time.perf_counter()
    for _ in range(pieces):
        work()
    return (time.perf_counter() - began) / pieces


def draws(chosen: SAC) -> Callable[[], object]:
    buffer = chosen.replay_buffer
    assert buffer is not None
    return lambda: buffer.sample(BATCH)


def updates(chosen: SAC) -> Callable[[], object]:
    return lambda: chosen.train(gradient_steps=1, batch_size=BATCH)


WORK = {"draw": draws, "train": updates}
ANSWER: dict[str, Callable[[float, float], float]] = {
    "draw": lambda alone, shared: 1e6 * (shared - alone),
    "train": lambda alone, shared: alone / shared,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=list(WORK))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="not used: rounds are counted")
    args = parser.parse_args()
    torch.set_num_threads(1)
    registry = create_distributed_registry(max_buffer_size=args.rows)
    others = [model(registry, f"peer{i}", "local_only", args.rows) for i in range(PEERS - 1)]
    pair = [model(registry, name, name, args.rows) for name in ("local_only", "self_heavy")]
    alone, shared = (WORK[args.what](chosen) for chosen in pair)
    pieces, rounds = PIECES[args.what], ROUNDS[args.what]
    timed(alone, pieces), timed(shared, pieces)
    times = [(timed(alone, pieces), timed(shared, pieces)) for _ in range(rounds)]
    value = statistics.median(ANSWER[args.what](*pair) for pair in times)
    stats = pair[1].replay_buffer.get_stats()  # type: ignore[union-attr]
    assert len(others) == PEERS - 1 == stats["num_shared_buffers"] - 1
    registry.stop()
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    print(
        json.dumps(
            {
                "value": value,
                "alone_us": 1e6 * medians[0],
                "shared_us": 1e6 * medians[1],
                "foreign_share": stats["distributed_ratio"],
            }
        )
    )


if __name__ == "__main__":
    main()

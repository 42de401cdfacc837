"""Updates per second of learners on a GPU: eager, captured, without replay, and on the CPU.

    python benchmarks/gpu/rookery_updates.py --out updates.jsonl

An update is sampling, the gradient steps of all losses, new priorities, and publishing when due, as
in the single loop. `floor` replays the captured update on one batch that is there already. Each
line of the output is one case on one device; the environments only have the shapes of those that
they are named after, since rows of any content take the same time.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rookery.config.load import load
from rookery.learner.captured_learner import CapturedLearner
from rookery.training.build import Parts, build_parts
from rookery.training.steps import collect, learn

SHAPES_ID = "Shapes-v0"
ROWS = 20_000  # in replay before the first update
FRAMES = 10_000
WARMUP = 30  # updates before the clock starts


class Shapes(gym.Env[Any, Any]):
    """An environment that returns the same observation every time, of a given shape."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = SHAPES[kind]()
        self._obs, self._steps = self.observation_space.sample(), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs, 0.1, False, self._steps >= 500, {}


def _box(width: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, (width,), np.float32)


SHAPES: dict[str, Callable[[], tuple[spaces.Space[Any], spaces.Space[Any]]]] = {
    "halfcheetah": lambda: (_box(17), _box(6)),
    "cartpole": lambda: (_box(4), spaces.Discrete(2)),
    "pong": lambda: (spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(6)),
}


class Case(NamedTuple):
    """A learner: the shape of its environment, and its settings."""

    env: str
    settings: Sequence[str]
    on_cpu: bool = True


CONTINUOUS = ("net.hidden=[256,256]", "replay.batch_size=256", "learner.max_grad_norm=null")
DOUBLE = ("algo=dqn", "net.hidden=[256,256]", "replay.batch_size=64")
RANKED = ("replay.sampling=prioritized",)
NATURE = (
    *("algo=dqn", "net.image=nature", "net.hidden=[512]", "replay.batch_size=512"),
    *("env.frame_stack=4", "replay.capacity=20_000", *RANKED),
)
CASES: dict[str, Case] = {
    "SAC 2x256 b256": Case("halfcheetah", ("algo=sac", *CONTINUOUS)),
    "TD3 2x256 b256": Case("halfcheetah", ("algo=td3", *CONTINUOUS)),
    "DDPG 2x256 b256": Case("halfcheetah", ("algo=ddpg", *CONTINUOUS)),
    "TQC 2x256 b256": Case("halfcheetah", ("algo=tqc", *CONTINUOUS)),
    "double DQN 2x256 b64": Case("cartpole", DOUBLE),
    "double DQN 2x256 b64 prioritised": Case("cartpole", (*DOUBLE, *RANKED)),
    "C51 2x256 b64 prioritised": Case("cartpole", (*DOUBLE, *RANKED, "algo.values=categorical")),
    "QR-DQN 2x256 b64": Case("cartpole", (*DOUBLE, "algo.values=quantiles")),
    "IQN 2x256 b64": Case("cartpole", (*DOUBLE, "algo.values=implicit")),
    "noisy DQN 2x256 b64": Case("cartpole", (*DOUBLE, "algo.noisy=true")),
    "Nature CNN b512 prioritised": Case("pong", NATURE, on_cpu=False),
}


def prepared(case: Case, *settings: str) -> Parts:
    rows = FRAMES if case.env == "pong" else ROWS
    config = load(
        overrides=[
            f"env={{id: {SHAPES_ID}, kwargs: {{kind: {case.env}}}, check: false}}",
            *case.settings,
            *settings,
        ]
    )
    parts = build_parts(config)
    while parts.counters.env_steps < rows:
        collect(parts)
    return parts


def rate(update: Callable[[], object], seconds: float) -> float:
    """Returns updates per second, with all that the device still has to do."""
    for _ in range(WARMUP):
        update()
    _wait()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            update()
        count += 10
    _wait()
    return count / (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(name: str, seconds: float) -> dict[str, object]:
    """Returns updates per second of one case by how they are computed."""
    case, found = CASES[name], dict[str, float]()
    if case.on_cpu:
        parts = prepared(case, "learner.device=cpu")
        found["cpu, one thread"] = rate(lambda: learn(parts), seconds)
    if torch.cuda.is_available():
        for how in ("off", "auto"):
            parts = prepared(case, "learner.device=cuda:0", f"learner.capture={how}")
            found["gpu, eager" if how == "off" else "gpu, captured"] = rate(
                lambda parts=parts: learn(parts), seconds
            )
        found["gpu, floor"] = rate(_floor(parts), seconds)
    return {"case": name, "updates_per_s": {key: round(value, 1) for key, value in found.items()}}


def _floor(parts: Parts) -> Callable[[], object]:
    """Returns the captured update alone: no sampling, no copy, no publishing."""
    learner = parts.learner
    assert isinstance(learner, CapturedLearner), "captured learners were asked for"
    (step,) = [step for key, step in learner._steps.items() if key[0] == 0] or [
        next(iter(learner._steps.values()))
    ]
    return step.run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure (default 3)")
    parser.add_argument("--only", default="", help="part of the names of cases (default: all)")
    parser.add_argument("--out", type=Path, help="file for the lines (default: none)")
    args = parser.parse_args()
    gym.register(SHAPES_ID, entry_point=Shapes)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    lines = [json.dumps({"commit": commit, "gpu": device, "torch": torch.__version__})]
    print(lines[0], flush=True)
    for name in CASES:
        if args.only in name:
            lines.append(json.dumps(measured(name, args.seconds)))
            print(lines[-1], flush=True)
            if args.out is not None:
                args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

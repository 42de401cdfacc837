"""Runs Stable-Baselines3's own tests of replay with our buffer in place of its three classes.

    pip download --no-binary :all: --no-deps stable-baselines3==2.9.2 -d /tmp/sb3
    tar xzf /tmp/sb3/stable_baselines3-2.9.2.tar.gz -C /tmp/sb3
    python tests/support/sb3_own_tests.py /tmp/sb3/stable_baselines3-2.9.2/tests

The tests are in SB3's source distribution only. Arguments after the folder go to pytest;
`--stock` runs the same tests with SB3's own classes, to compare.
"""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import stable_baselines3.common.buffers as buffers
import stable_baselines3.common.off_policy_algorithm as off_policy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from rookery import DistributedReplayBuffer

FILES = (
    "test_buffers.py",
    "test_save_load.py",
    "test_n_step_replay.py",
    "test_dict_env.py",
    "test_vec_normalize.py",
)


class PlainBuffer(DistributedReplayBuffer):
    """Stands in for SB3's `ReplayBuffer`."""


class DictBuffer(PlainBuffer):
    """Stands in for SB3's `DictReplayBuffer`."""


class NStepBuffer(PlainBuffer):
    """Stands in for SB3's `NStepReplayBuffer`, with its defaults."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any):
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)


PlainBuffer.register(HerReplayBuffer)  # SB3 checks that a loaded buffer is a `ReplayBuffer`
STAND_INS = {
    "ReplayBuffer": PlainBuffer,
    "DictReplayBuffer": DictBuffer,
    "NStepReplayBuffer": NStepBuffer,
}


def main(folder: Path, *arguments: str) -> int:
    """Runs SB3's tests in `folder`; returns pytest's exit code."""
    if "--stock" not in arguments:
        _replace_classes()
    os.chdir(folder)  # SB3's tests write their files into the present folder
    rest = [word for word in arguments if word != "--stock"]
    return pytest.main(["-p", "no:cacheprovider", "-q", *FILES, *rest])


def _replace_classes() -> None:
    """Gives the tests and SB3's algorithms our classes.

    SB3's module of buffers itself is left as it is: its classes refer to each other by name.
    """
    seen_by_tests = ModuleType(buffers.__name__)
    vars(seen_by_tests).update(vars(buffers), **STAND_INS)
    sys.modules[buffers.__name__] = seen_by_tests
    vars(off_policy).update(STAND_INS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), *sys.argv[2:]))

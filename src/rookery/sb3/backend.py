"""Backend that runs the algorithms of Stable-Baselines3 (SB3)."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.config.schema import Config
from rookery.envs.make import Envs
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.evaluation.backend import RunRequest, RunSession

MODEL = "model.zip"


def require_sb3() -> None:
    """Raises `ConfigError` if Stable-Baselines3 is not installed."""
    if importlib.util.find_spec("stable_baselines3") is None:
        raise ConfigError(
            "backend sb3 needs stable-baselines3, which is not installed; "
            "pip install 'rookery[sb3]', or use backend rookery"
        )


class Sb3Backend:
    """Trains and evaluates with SB3; implements `Backend`, the interface to other RL libraries.

    SB3 is imported only when a run or an evaluation begins.
    """

    def how_to_open(self, config: Config, run_dir: Path) -> str:
        """Returns instructions to load a saved model with SB3, whose networks Rookery cannot train.

        If the run has stopped before it saved a model, returns how to resume it.
        """
        name = config.sb3.algorithm
        if not (run_dir / MODEL).exists():
            return (
                f"{run_dir} is a run of Stable-Baselines3 that stopped before it was saved (it has "
                f"no {MODEL}); resume it: rookery train --resume {run_dir}"
            )
        return (
            f"{run_dir} was trained by Stable-Baselines3, whose networks are not Rookery's; load "
            "it with SB3:\n"
            f"  from stable_baselines3 import {name}\n"
            f'  model = {name}.load("{run_dir / MODEL}")'
        )

    def evaluation_policy(self, config: Config, envs: Envs, factory: Any) -> Any:
        """Builds SB3's policy for the evaluation process.

        Its weights are loaded later, from the weight snapshots that the training process sends.
        """
        from rookery.sb3.models import Sb3Policy

        return Sb3Policy(config, envs.codec, factory)

    @contextlib.contextmanager
    def session(self, config: Config, request: "RunRequest") -> "Iterator[RunSession]":
        """Context that starts an SB3 training run, and closes its processes and files afterwards.

        Raises ConfigError if SB3 is missing, or for `--exact`.
        """
        require_sb3()
        if request.exact:
            raise ConfigError(
                f"--exact cannot resume {request.resume}: environments of Stable-Baselines3's runs "
                "begin new episodes at a resume, so none of their checkpoints is exact; leave "
                "--exact out"
            )
        from rookery.networks.device import pick_device
        from rookery.report.trackers.sinks import check as check_sinks
        from rookery.sb3.sb3_run import Sb3Trainer
        from rookery.training.launch import started

        pick_device(config.learner.device)
        check_sinks(config)
        with started(config, request, Sb3Trainer) as run:
            yield run


BACKEND = Sb3Backend()

"""Backend that runs the algorithms of Stable-Baselines3 (SB3)."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.config.schema import Config
from rookery.envs.lookup import name_of
from rookery.envs.make import Envs
from rookery.errors import ConfigError
from rookery.terminal.output import notice

if TYPE_CHECKING:
    from rookery.evaluation.backend import RunRequest
    from rookery.sb3.sb3_run import Sb3Run

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
        """Returns instructions to load a saved model with SB3, since Rookery reads no pickles.

        If the run has stopped before it saved a model, returns how to start it again.
        """
        name = config.sb3.algorithm
        if not (run_dir / MODEL).exists():
            return (
                f"{run_dir} is a run of Stable-Baselines3 that stopped before it was saved (it has "
                f"no {MODEL}), and runs of SB3 are not resumed; start it again: "
                f"rookery train {config.name} --run-dir ANOTHER_FOLDER"
            )
        return (
            f"{run_dir} was trained by Stable-Baselines3; its {MODEL} holds pickles, which Rookery "
            f"does not load; load it with SB3:\n"
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
    def session(self, config: Config, request: "RunRequest") -> "Iterator[Sb3Run]":
        """Context that starts an SB3 training run, and closes its processes and files afterwards.

        Raises ConfigError if SB3 is missing, or if an earlier run is to be resumed.
        """
        require_sb3()
        from rookery.checkpoints import run_folder
        from rookery.networks.device import pick_device
        from rookery.report.trackers.sinks import check as check_sinks
        from rookery.runtime.signals import Interrupts
        from rookery.sb3 import sb3_run
        from rookery.training.launch import (
            about_of,
            check_environment,
            context_of,
            open_evaluation_client,
        )

        if request.resume is not None:
            raise ConfigError(self.how_to_open(config, request.resume))
        device = pick_device(config.learner.device)
        check_sinks(config)
        if request.factory is not None:
            config = replace(config, env=replace(config.env, id=name_of(request.factory)))
        notice(f"starting {config.name}, seed {config.run.seed}")
        with Interrupts() as interrupts, contextlib.ExitStack() as stack:
            check_environment(config, request.factory)
            run_dir = stack.enter_context(run_folder.claimed(config, interrupts))
            client = open_evaluation_client(config, request, run_dir, stack)
            learning = sb3_run.prepare(config, request.factory, device, run_dir, stack)
            interrupts.begin()
            about = {**about_of(config), "backend": config.algorithm}
            context = context_of(config, request, run_dir, client, interrupts, about)
            yield sb3_run.Sb3Run(learning, context)


BACKEND = Sb3Backend()

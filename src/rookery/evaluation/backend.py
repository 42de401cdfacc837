"""Backends: other RL libraries whose training loop can run in place of Rookery's own.

Such a run has the same run folder, events, evaluations and result as any other. The setting
`backend` selects a backend; plugins register them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rookery import plugins
from rookery.config.schema import Config
from rookery.envs.make import Envs, Factory
from rookery.event import Ask, Event
from rookery.runtime.signals import Interrupts

Callback = Callable[[Event], Ask | str | None]


class RunRequest(NamedTuple):
    """Arguments of a training run that are not settings, such as the run folder to resume."""

    resume: Path | None = None
    exact: bool = False
    init_from: str | None = None
    factory: Factory | None = None
    callbacks: Sequence[Callback] = ()
    console: bool = False


class RunSession(Protocol):
    """Interface of a training run in progress."""

    run_dir: Path
    interrupts: Interrupts

    def events(self) -> Iterator[Event]:
        """Runs the training and yields its events; `Stopped` is the last one."""


class Backend(Protocol):
    """Interface of another RL library whose training loop replaces Rookery's own."""

    def session(self, config: Config, request: RunRequest) -> AbstractContextManager[RunSession]:
        """Returns a context manager for a run; on exit its processes and files are closed."""

    def evaluation_policy(self, config: Config, envs: Envs, factory: Factory | None) -> Any:
        """Builds the policy that evaluations use.

        Its weights are loaded later, before each evaluation.
        """

    def how_to_open(self, config: Config, run_dir: Path) -> str:
        """Returns a sentence for error messages that says how to open a model of this backend."""


def backend_of(config: Config) -> Backend | None:
    """Returns the backend named by the setting `backend`; None for Rookery's own training loop."""
    row = plugins.backends().get(config.backend)
    return None if row is None else plugins.load(row.backend)

"""`rookery join`: a learner that trains with others, over a server (`rookery serve`).

It hears from the server what is trained, plays its own environment, and sends what the server asks
for: gradients, each of one batch, or what a round of training has changed. Rows never leave it.

A server that is restarted is waited for. What was sent and not acknowledged is sent again, under
the same id.
"""

import contextlib
import time
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rookery.config.load import load
from rookery.config.schema import Config, Mode
from rookery.errors import RefusedError, StalledError
from rookery.event import Collected, IterationEnded
from rookery.learner.gradients import refuse_others
from rookery.learner.learner import trained
from rookery.runtime.signals import Interrupts
from rookery.server.advertised_settings import OVER, Notice, Sharing, config_of, portable
from rookery.server.gradient_worker import (
    RunGradients,
    RunSetup,
    RunUpdates,
    Update,
    UpdateSource,
)
from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.parameter_server import Receipt
from rookery.server.serve_report import CommandOutcome
from rookery.terminal import output
from rookery.training import LOOPS
from rookery.training.build import build_parts
from rookery.training.steps import publish
from rookery.types import Array

WINDOW = 100  # episodes of the mean return
REPORT_S = 10.0  # between two lines
SLACK_S = 2.0  # after a deadline, before an update is sent again


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of `rookery join`."""

    url: str
    client: str
    key: str | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    seed: int | None = None  # None: from the client's name
    scenario: str | None = None  # None: what the server says
    overrides: tuple[str, ...] = ()
    steps: int | None = None  # env steps
    rounds: int | None = None  # updates that were taken
    codec: str = "none"
    keep: float = 0.01  # share of entries that top_k sends
    patience_s: float = 120.0
    ca: Path | None = None
    quiet: bool = False


class ProximalTerm:
    """Adds the proximal gradient mu (w - w_0) to every step, w_0 being the served parameters.

    The gradient of FedProx's term (Li et al. 2020, eq. 2); `learner.max_grad_norm` is for that of
    the loss alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, mu: float):
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._mu = mu
        self.anchor()
        optimizer.register_step_pre_hook(self._pull)

    def anchor(self) -> None:
        """Makes the present parameters w_0."""
        self._anchors = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def _pull(self, *_: Any) -> None:
        for parameter, anchor in zip(self._parameters, self._anchors, strict=True):
            parameter.grad.add_(parameter - anchor, alpha=self._mu)


class RoundLearner(RunUpdates):
    """Trains a round as a run in single mode, and computes the change of its weights."""

    def __init__(self, config: Config, notice: Notice):
        super().__init__(build_parts(config))
        self._events = LOOPS[Mode.SINGLE](self.parts)
        self.trained = trained(self.parts.learner.algorithm)
        self._steps, self._begun, self._learned = notice.round_steps, 0, 0
        self._start: dict[str, Array] = {}
        optimizers = self.parts.learner.optimizers.values() if notice.mu else ()
        self._proximal = [ProximalTerm(optimizer, notice.mu) for optimizer in optimizers]

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        """Begins a round from a server's parameters; `steps` does not matter."""
        self._start = dict(parameters)
        refuse_others(self._start, self.trained, "parameters of the server")
        for name, parameter in self.trained.items():
            parameter.copy_(torch.from_numpy(np.array(self._start[name])))
        for term in self._proximal:
            term.anchor()
        self.parts.learner.algorithm.update_targets(0)
        self.parts.published_at = float("-inf")  # it is never too early for this one
        publish(self.parts)
        self.go_on()

    def go_on(self) -> None:
        """Begins a round from the parameters at the end of the last one."""
        self._begun, self._learned = self.env_steps, self.parts.counters.learner_steps

    def step(self) -> Update | None:
        """Plays a chunk; the round is over at its end, and not before something was learned."""
        for event in self._events:
            if isinstance(event, Collected):
                self.ended += event.ended
            if isinstance(event, IterationEnded):
                break
        played = self.env_steps - self._begun
        if played < self._steps or self.parts.counters.learner_steps == self._learned:
            return None
        change = {n: p.detach().numpy() - self._start[n] for n, p in self.trained.items()}
        return Update(change, float(played))


LEARNERS: dict[Sharing, Callable[[Config, Notice], UpdateSource]] = {
    Sharing.GRADIENTS: lambda config, notice: RunGradients(RunSetup(config, None)),
    Sharing.FEDERATED: RoundLearner,
}


def join(asked: Asked) -> CommandOutcome:
    """Joins a server and trains until a limit, the server or a signal; returns the result."""
    with Interrupts() as interrupts, _remote(asked) as remote, contextlib.ExitStack() as stack:
        stats = remote.get_server_stats()
        notice = Notice.heard(stats)
        config = _config(asked, notice)
        torch.set_num_threads(config.learner.threads)
        learner = LEARNERS[notice.sharing](config, notice)
        stack.callback(learner.close)
        member = Member(asked, remote, notice, stats, learner, interrupts)
        stack.callback(member.leave)
        interrupts.on_signal = remote.give_up  # a call that waits for the server ends at once
        interrupts.begin()
        member.say(f"joined {asked.url} as {asked.client}: {config.name} ({notice.sharing})")
        why = member.until_over()
        return CommandOutcome(member.answer(why), interrupts.exit_code)


@dataclass
class Member:
    """A client of a parameter server: trains, pushes updates, and pulls new parameters."""

    asked: Asked
    remote: RemoteParameterServer
    notice: Notice
    stats: Mapping[str, Any]  # of the server, when this client joined
    learner: UpdateSource
    interrupts: Interrupts

    def __post_init__(self) -> None:
        self.in_rounds = bool(self.stats["synchronous"])  # the server answers once a round
        self.private = bool(self.stats.get("differential_privacy"))
        self.version = -1  # of the parameters here; -1: any version is newer
        self._loaded: int | None = None  # the version loaded last
        self.accepted, self.codes = 0, Counter[str]()
        self.episodes, self.returns = 0, deque[float](maxlen=WINDOW)
        self._reported = time.monotonic()

    def until_over(self) -> str:
        """Trains until a limit, the server or a signal ends it; returns the reason."""
        try:
            self.remote.register_worker(self.asked.client)
            self._pull()
            while (why := self._why()) is None:
                update = self.learner.step()
                self._count_episodes()
                if update is not None:
                    self._deliver(update)
        except StalledError:
            if self.interrupts.reason is None:
                raise
            why = self._why()
        except RefusedError as refusal:
            if refusal.code not in OVER:
                raise
            why = refusal.code
        return str(why)

    def _deliver(self, update: Update) -> None:
        receipt = self._push(update)
        if self.in_rounds:
            self._await(update)
        elif receipt.version != self.version:
            self._pull()

    def _why(self) -> str | None:
        """Returns the reason why training is over, or None."""
        if self.interrupts.reason is not None:
            return str(self.interrupts.reason)
        limits = {
            "limit": (self.notice.until, self.version),
            "steps": (self.asked.steps, self.learner.env_steps),
            "rounds": (self.asked.rounds, self.accepted),
        }
        reached = (why for why, (most, now) in limits.items() if most is not None and now >= most)
        return next(reached, None)

    def _pull(self, wait_s: float = 0.0) -> bool:
        served = self.remote.get_parameters(newer_than=self.version, wait_s=wait_s)
        if served is None:
            return False
        before = served.version if self._loaded is None else self._loaded
        self.learner.load(served.arrays, max(0, served.version - before))
        self.version = self._loaded = served.version
        return True

    def _push(self, update: Update) -> Receipt:
        receipt = self._send(update)
        self.codes[receipt.code] += 1
        self.accepted += receipt.accepted
        if receipt.version < self.version:
            self.version = -1  # an older checkpoint was loaded there: its version is new here
        return receipt

    def _send(self, update: Update) -> Receipt:
        name, weight = self.asked.client, 1.0 if self.private else update.weight
        push_id = uuid.uuid4().hex
        push = partial(self.remote.push_gradients, version=self.version, push_id=push_id)
        try:
            return push(name, update.arrays, weight)
        except RefusedError as refusal:
            if refusal.code != "unknown_worker":
                raise
        self.remote.register_worker(name)  # the server's checkpoint is older than this client
        return push(name, update.arrays, weight)

    def _await(self, update: Update) -> None:
        """Waits for the end of a round; sends the update again if the round was skipped."""
        patience_s = self.notice.deadline_s + SLACK_S
        again_at = time.monotonic() + patience_s
        while self._why() is None and not self._pull(wait_s=max(0.0, again_at - time.monotonic())):
            self._count_episodes()
            if time.monotonic() >= again_at:
                self.remote.take_back(self.asked.client)
                self._push(update)
                again_at = time.monotonic() + patience_s

    def _count_episodes(self) -> None:
        """Counts the episodes that have ended, and prints a line every `REPORT_S` seconds."""
        self.episodes += len(self.learner.ended)
        self.returns.extend(episode.score for episode in self.learner.ended)
        self.learner.ended.clear()
        if time.monotonic() - self._reported >= REPORT_S:
            self._reported = time.monotonic()
            self.say(
                f"version {self.version}, {self.learner.env_steps:,} env steps, {self.accepted} "
                f"updates, mean return {np.mean(self.returns) if self.returns else np.nan:.2f}"
            )

    def leave(self) -> None:
        """Unregisters, so that rounds need not wait for this client."""
        self.remote.give_up()
        with contextlib.suppress(StalledError, RefusedError):
            self.remote.unregister_worker(self.asked.client)

    def answer(self, why: str) -> dict[str, Any]:
        """Returns the result, as `rookery join --json` prints it."""
        return {
            "client": self.asked.client,
            "mode": self.notice.sharing.value,
            "version": self.version,
            "env_steps": self.learner.env_steps,
            "episodes": self.episodes,
            "accepted": self.accepted,
            "codes": dict(self.codes),
            "mean_return": float(np.mean(self.returns)) if self.returns else None,
            "reason": why,
        }

    def say(self, message: str) -> None:
        if not self.asked.quiet:
            output.notice(message)


def _remote(asked: Asked) -> RemoteParameterServer:
    own = ("ca", "certificate", "private_key", "codec", "keep", "patience_s")
    options = {name: getattr(asked, name) for name in own}
    return RemoteParameterServer(asked.url, asked.client, asked.key, **options)


def _config(asked: Asked, notice: Notice) -> Config:
    given = config_of(notice) if asked.scenario is None else load(asked.scenario)
    config = portable(load(given, overrides=asked.overrides))
    seed = zlib.crc32(asked.client.encode()) if asked.seed is None else asked.seed
    steps = asked.steps or config.run.env_steps  # schedules follow them
    return replace(config, run=replace(config.run, seed=seed, env_steps=steps))

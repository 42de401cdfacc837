"""`rookery join`: a learner that trains with others, over a server that somebody else started.

It hears from the server what is trained, plays its own environment, and sends what the server asks
for: gradients, each of one batch, or what a round of training has changed. Rows never leave it.

A server that is restarted is waited for. What was sent and not acknowledged is sent again, under
the same id.
"""

import contextlib
import sys
import threading
import time
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rookery.config.load import load
from rookery.config.schema import Config, Mode
from rookery.errors import ConfigError, RefusedError, StalledError
from rookery.event import Collected, Episode, IterationEnded
from rookery.learner.learner import trained
from rookery.runtime.signals import Interrupts
from rookery.server.advertised_settings import OVER, Notice, Sharing, config_of, portable
from rookery.server.gradient_worker import RunHand, RunSetup
from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.parameter_server import Parameters, Receipt
from rookery.training import LOOPS
from rookery.training.build import build_parts
from rookery.training.steps import publish
from rookery.types import Array

WINDOW = 100  # episodes of the mean return
REPORT_S = 10.0  # between two lines
WAIT_S = 5.0  # the longest wait for a new version without a look around
SLACK_S = 2.0  # after a deadline, before an update is sent again
LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Who joins what, and how long."""

    url: str
    client: str
    key: str
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


class ClientOutcome(NamedTuple):
    """How it ended."""

    answer: dict[str, Any]
    exit_code: int


class Update(NamedTuple):
    """What a server is sent."""

    arrays: Mapping[str, Array]
    weight: float


class ClientLearner(Protocol):
    """What learns here."""

    env_steps: int
    ended: list[Episode]  # since they were last taken

    def load(self, served: Parameters) -> None:
        """Goes on from the server's parameters."""

    def step(self) -> Update | None:
        """Does a part of the work; returns what came of it, once there is something."""

    def close(self) -> None: ...


class GradientPupil:
    """Sends the gradient of each batch and takes no step itself."""

    def __init__(self, config: Config, notice: Notice):
        self._hand = RunHand(RunSetup(config, None))
        self._version: int | None = None

    @property
    def env_steps(self) -> int:
        return self._hand.env_steps

    @property
    def ended(self) -> list[Episode]:
        return self._hand.ended

    def load(self, served: Parameters) -> None:
        before = served.version if self._version is None else self._version
        self._hand.load(served.arrays, max(0, served.version - before))
        self._version = served.version

    def step(self) -> Update | None:
        found = self._hand.step()
        return None if found is None else Update(found.arrays, 1.0)

    def close(self) -> None:
        self._hand.close()


class Hold:
    """Adds to every step what holds a client near the parameters it was served, mu (w - w_0).

    The gradient of FedProx's term (Li et al. 2020, eq. 2); `learner.max_grad_norm` is for that of
    the loss alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, mu: float):
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._mu, self._anchors = mu, list[torch.Tensor]()
        self.anchor()
        optimizer.register_step_pre_hook(self._pull)

    def anchor(self) -> None:
        """Holds from now on where the parameters are now."""
        self._anchors = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def _pull(self, *_: Any) -> None:
        for parameter, anchor in zip(self._parameters, self._anchors, strict=True):
            parameter.grad.add_(parameter - anchor, alpha=self._mu)


class RoundPupil:
    """Trains for a while as a run of its own, and sends what that has changed."""

    def __init__(self, config: Config, notice: Notice):
        self.parts = build_parts(config)
        self._events = LOOPS[Mode.SINGLE](self.parts)
        self.trained = trained(self.parts.learner.algorithm)
        self._steps, self._begun, self._learned = notice.round_steps, 0, 0
        self._start: dict[str, Array] = {}
        self.ended: list[Episode] = []
        self._holds = [Hold(o, notice.mu) for o in self._optimizers()] if notice.mu else []

    def _optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return self.parts.learner.optimizers.values()

    @property
    def env_steps(self) -> int:
        return self.parts.counters.env_steps

    @torch.no_grad()
    def load(self, served: Parameters) -> None:
        self._start = dict(served.arrays)
        _refuse_others(self._start, self.trained)
        for name, parameter in self.trained.items():
            parameter.copy_(torch.from_numpy(np.array(self._start[name])))
        for hold in self._holds:
            hold.anchor()
        self.parts.learner.algorithm.update_targets(0)
        self.parts.published_at = float("-inf")  # it is never too early for this one
        publish(self.parts)
        self.go_on()

    def go_on(self) -> None:
        """Begins a round from the parameters that the last one has come to."""
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

    def close(self) -> None:
        self.parts.close()


PUPILS: dict[Sharing, Any] = {
    Sharing.GRADIENTS: GradientPupil,
    Sharing.FEDERATED: RoundPupil,
}


def join(asked: Asked) -> ClientOutcome:
    """Learns with others until a limit, the server or a signal ends it; returns how."""
    with Interrupts() as interrupts, _remote(asked) as remote, contextlib.ExitStack() as stack:
        stats = remote.get_server_stats()
        notice = Notice.heard(stats)
        config = _config(asked, notice)
        torch.set_num_threads(config.learner.threads)
        pupil: ClientLearner = PUPILS[notice.sharing](config, notice)
        stack.callback(pupil.close)
        member = Member(asked, remote, notice, stats, pupil, interrupts)
        stack.callback(member.leave)
        stack.enter_context(_attentive(remote, interrupts))
        interrupts.begin()
        member.say(f"joined {asked.url} as {asked.client}: {config.name} ({notice.sharing})")
        why = member.until_over()
        return ClientOutcome(member.answer(why), interrupts.exit_code)


class Member:
    """One client of a server, from its first message to its last."""

    def __init__(
        self,
        asked: Asked,
        remote: RemoteParameterServer,
        notice: Notice,
        stats: Mapping[str, Any],
        pupil: ClientLearner,
        interrupts: Interrupts,
    ):
        self.asked, self.remote, self.notice, self.pupil = asked, remote, notice, pupil
        self.interrupts = interrupts
        self.rounds = bool(stats["synchronous"])  # is every update waited for?
        self.private = bool(stats.get("differential_privacy"))
        self.version = -1  # of the parameters here
        self.accepted, self.codes = 0, Counter[str]()
        self.episodes, self.returns = 0, deque[float](maxlen=WINDOW)
        self._ended: str | None = None  # what the server said of the end
        self._told = time.monotonic()

    def until_over(self) -> str:
        """Trains until it is over; returns why."""
        try:
            self.remote.register_worker(self.asked.client)
            self._pull()
            while (why := self._why()) is None:
                self._turn()
        except StalledError:
            if self.interrupts.reason is None:
                raise
            why = self._why()
        return str(why)

    def _turn(self) -> None:
        update = self.pupil.step()
        self._note()
        if update is not None:
            self._deliver(update)

    def _deliver(self, update: Update) -> None:
        receipt = self._push(update)
        if self.rounds and receipt is not None:
            self._await(update)
        elif receipt is not None and receipt.version != self.version:
            self._pull()

    def _why(self) -> str | None:
        """Returns why it is over, or None."""
        asked, until = self.asked, self.notice.until
        reasons = {
            str(self.interrupts.reason): self.interrupts.reason is not None,
            str(self._ended): self._ended is not None,
            "limit": until is not None and self.version >= until,
            "steps": asked.steps is not None and self.pupil.env_steps >= asked.steps,
            "rounds": asked.rounds is not None and self.accepted >= asked.rounds,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _pull(self, wait_s: float = 0.0) -> bool:
        served = self.remote.get_parameters(newer_than=self.version, wait_s=wait_s)
        if served is None:
            return False
        self.pupil.load(served)
        self.version = served.version
        return True

    def _push(self, update: Update) -> Receipt | None:
        """Sends an update; None where the server says that all is over."""
        weight = 1.0 if self.private else update.weight
        name, push_id = self.asked.client, uuid.uuid4().hex
        try:
            receipt = self._sent(name, update.arrays, weight, push_id)
        except RefusedError as refusal:
            if refusal.code not in OVER:
                raise
            self._ended = refusal.code
            return None
        self.codes[receipt.code] += 1
        self.accepted += receipt.accepted
        if receipt.version < self.version:
            self.version = -1  # the server was put back: what it has now is new to us
        return receipt

    def _sent(self, name: str, arrays: Mapping[str, Array], weight: float, push_id: str) -> Receipt:
        try:
            return self.remote.push_gradients(
                name, arrays, weight, version=self.version, push_id=push_id
            )
        except RefusedError as refusal:
            if refusal.code != "unknown_worker":
                raise
        self.remote.register_worker(name)  # a server that was put back to before we came
        return self.remote.push_gradients(
            name, arrays, weight, version=self.version, push_id=push_id
        )

    def _await(self, update: Update) -> None:
        """Waits for what becomes of a round; one that came to nothing is tried again."""
        again_at = time.monotonic() + self.notice.deadline_s + SLACK_S
        while self._why() is None and not self._pull(wait_s=WAIT_S):
            self._note()
            if time.monotonic() > again_at:
                self.remote.take_back(self.asked.client)
                self._push(update)
                again_at = time.monotonic() + self.notice.deadline_s + SLACK_S

    def _note(self) -> None:
        """Counts what was played, and says so now and then."""
        self.episodes += len(self.pupil.ended)
        self.returns.extend(episode.score for episode in self.pupil.ended)
        self.pupil.ended.clear()
        if time.monotonic() - self._told >= REPORT_S:
            self._told = time.monotonic()
            self.say(
                f"version {self.version}, {self.pupil.env_steps:,} env steps, {self.accepted} "
                f"updates, mean return {self._mean():.2f}"
            )

    def _mean(self) -> float:
        return float(np.mean(self.returns)) if self.returns else float("nan")

    def leave(self) -> None:
        """Says goodbye: rounds need not wait for us. A server that is gone does not hear it."""
        self.remote.give_up()
        with contextlib.suppress(StalledError, RefusedError):
            self.remote.unregister_worker(self.asked.client)

    def answer(self, why: str) -> dict[str, Any]:
        """Returns what it came to."""
        return {
            "client": self.asked.client,
            "mode": self.notice.sharing.value,
            "version": self.version,
            "env_steps": self.pupil.env_steps,
            "episodes": self.episodes,
            "accepted": self.accepted,
            "codes": dict(self.codes),
            "mean_return": self._mean() if self.returns else None,
            "reason": why,
        }

    def say(self, message: str) -> None:
        if not self.asked.quiet:
            sys.stderr.write(f"rookery: {message}\n")
            sys.stderr.flush()


def _remote(asked: Asked) -> RemoteParameterServer:
    return RemoteParameterServer(
        asked.url,
        asked.client,
        asked.key,
        ca=asked.ca,
        codec=asked.codec,
        keep=asked.keep,
        patience_s=asked.patience_s,
    )


def _config(asked: Asked, notice: Notice) -> Config:
    given = config_of(notice) if asked.scenario is None else load(asked.scenario)
    config = portable(load(given, overrides=asked.overrides))
    seed = zlib.crc32(asked.client.encode()) if asked.seed is None else asked.seed
    steps = asked.steps or config.run.env_steps  # schedules follow them
    return replace(config, run=replace(config.run, seed=seed, env_steps=steps))


def _refuse_others(served: Mapping[str, Array], own: Mapping[str, Any]) -> None:
    wrong = sorted(served.keys() ^ own.keys())
    wrong += [n for n in served if n in own and served[n].shape != tuple(own[n].shape)]
    if wrong:
        raise ConfigError(
            f"the server's parameters are of another network than this one: {', '.join(wrong[:8])};"
            " use its scenario, and an environment with the same observations and actions"
        )


@contextlib.contextmanager
def _attentive(remote: RemoteParameterServer, interrupts: Interrupts) -> Iterator[None]:
    """Ends the patience with a server that is away as soon as a signal comes.

    A handler cannot do that: it may run in the middle of what it would have to lock.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            if interrupts.reason is not None:
                remote.give_up()
                return

    thread = threading.Thread(target=look, name="attentive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

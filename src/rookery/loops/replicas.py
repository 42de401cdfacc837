"""Several learners that share every batch, seen from the first one.

The first one is the run: it alone draws, ranks, publishes and saves. It deals every batch in equal
slices, takes the step together with the others, and gets their TD errors. Nobody is replaced: a
learner that is lost ends the run, which goes on from its last checkpoint with as many as there are.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from rookery.config.schema import Config, Engine
from rookery.engines import ENGINES
from rookery.engines.interface import Close, Failed, Host
from rookery.errors import ConfigError, LostError, RookeryError, noted
from rookery.loops.peers import FIRST, START_S, Peers, listen
from rookery.loops.replica import (
    BUFFER,
    FOREVER_S,
    HEAD,
    NO_DIGEST,
    BereftError,
    Head,
    Kind,
    Setup,
    Together,
    terms_of,
)
from rookery.loops.slices import Layout, batch_of, named, packed
from rookery.types import Array, Batch, EnvSpec, Learned

HERE = "127.0.0.1:0"  # a free port that other machines cannot reach
CHECK_PERIOD = 1_000  # learner steps between two comparisons of all weights
CLOSE_S = 2.0
LAST_WORDS_S = 2.0  # for a learner that is gone to have said why
NAP_S = 0.02


class Trouble(NamedTuple):
    """Why a learner is gone."""

    summary: str
    traceback: str = ""
    final: bool = False  # another try would fail in the same way: a wrong request

    @property
    def own(self) -> bool:
        """Is it the cause, or did this one only notice that others were gone?"""
        return not self.summary.startswith(BereftError.__name__)


class Replicas:
    """The other learners: starts those of this machine, and sees whether they live."""

    def __init__(self, config: Config, spec: EnvSpec):
        self._config, self._count = config, config.learner.replicas
        self._store: Any = listen(config.learner.rendezvous or HERE)
        self._address = f"{self._store.host}:{self._store.port}"
        self._hosts: dict[int, Host] = {}
        self._troubles: dict[int, Trouble] = {}
        self.peers: Peers | None = None
        self.intact = True  # as far as is known
        if config.learner.rendezvous is None:
            self._start(spec)

    def _start(self, spec: EnvSpec) -> None:
        try:
            for rank in range(1, self._count):
                self._hosts[rank] = ENGINES[Engine.PROCESSES](
                    "rookery.loops.replica:Replica",
                    Setup(self._config, spec, rank, self._address),
                    name=f"learner-{rank}",
                )
        except OSError:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        return {host.name: host.pid for host in self._hosts.values()}

    def connect(self, device: torch.device) -> Peers:
        """Waits for all of them, and brings them together."""
        verdict = self._verdict(self._arrived())
        self._store.set("verdict", verdict)
        if verdict:
            self._come("heard", LAST_WORDS_S)
            raise ConfigError(verdict)
        # what waits for one of this machine ends once that is killed; of others it must by itself
        mortal = bool(self._hosts) and device.type == "cpu"
        self.peers = Peers(
            self._store,
            FIRST,
            self._count,
            device,
            timeout_s=FOREVER_S if mortal else self._config.learner.replica_timeout_s,
            look=self.look,
            lost=self.lost,
        )
        return self.peers

    def _arrived(self) -> dict[int, Any]:
        """Returns everybody's terms, by rank."""
        if missing := self._come("ready", START_S):
            raise self._absent(missing)
        ranks = range(1, self._count)
        return {rank: json.loads(self._store.get(f"ready/{rank}")) for rank in ranks}

    def _come(self, what: str, within_s: float) -> list[int]:
        """Waits until all of them have left a word; returns the ranks of those who have not."""
        deadline = time.monotonic() + within_s
        missing = list(range(1, self._count))
        while missing and time.monotonic() < deadline:
            self.look(0.0)
            missing = [rank for rank in missing if not self._store.check([f"{what}/{rank}"])]
            time.sleep(NAP_S if missing else 0.0)
        return missing

    def _verdict(self, arrived: Mapping[int, Any]) -> str:
        """Says what is wrong with those who came; nothing where they all fit."""
        ours = _leaves(terms_of(self._config))
        for rank, terms in arrived.items():
            theirs = _leaves(terms)
            for key in sorted({*ours, *theirs}):
                if ours.get(key) != theirs.get(key):
                    return (
                        f"learner {rank} has {key} {theirs.get(key)!r}, and the run has "
                        f"{ours.get(key)!r}; give all learners the same scenario and settings"
                    )
        return ""

    def look(self, waited_s: float) -> None:
        """Raises where one of them is gone, or has been waited for too long."""
        for rank, host in self._hosts.items():
            self._examine(rank, host)
        if self._troubles:
            raise self.lost()
        limit_s = self._config.learner.replica_timeout_s
        if waited_s >= limit_s:
            self.intact = False
            raise LostError(
                f"one of {self._count} learners has kept the others waiting for {waited_s:.0f} s "
                f"(learner.replica_timeout_s is {limit_s:g}); raise the limit where steps take "
                "that long; `rookery train --resume` goes on from the last checkpoint"
            )

    def lost(self, error: Exception | None = None) -> RookeryError:
        """Returns what became of whoever is gone, in its own words where it left any."""
        self.intact = False
        rank, trouble = self._cause() or (None, Trouble(_first_line(error)))
        if trouble.final and self.peers is None:
            _, _, message = trouble.summary.partition(": ")
            return noted(ConfigError(f"learner {rank}: {message}"), trouble.traceback)
        who = "one" if rank is None else f"number {rank}"
        last = LostError(
            f"{who} of {self._count} learners was lost ({trouble.summary}); `rookery train "
            "--resume` goes on from the last checkpoint, with any number of --learners"
        )
        return noted(last, trouble.traceback)

    def _cause(self) -> tuple[int, Trouble] | None:
        """Returns who was lost first; those who only noticed it come after."""
        deadline = time.monotonic() + LAST_WORDS_S
        while self._hosts:
            for rank, host in self._hosts.items():
                self._examine(rank, host)
            if any(trouble.own for trouble in self._troubles.values()):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(NAP_S)
        ordered = sorted(self._troubles.items(), key=lambda item: not item[1].own)
        return ordered[0] if ordered else None

    def _examine(self, rank: int, host: Host) -> None:
        if rank in self._troubles:
            return
        alive, message = host.alive, host.receive()
        if isinstance(message, Failed):
            self._troubles[rank] = Trouble(message.summary, message.traceback, message.final)
        elif not alive:  # and it left no word
            self._troubles[rank] = Trouble(f"exit status {host.stop(0.0)}")

    def _absent(self, missing: list[int]) -> LostError:
        names, hint = ", ".join(map(str, missing)), f"RANK={missing[0]} and the same settings"
        return LostError(
            f"of {self._count} learners, {names} did not come to {self._address} within "
            f"{START_S:g} s; start each of them with a rank, such as {hint}"
        )

    def close(self) -> None:
        """Waits a moment for those of this machine to end, and ends them for certain."""
        grace_s = CLOSE_S if self.intact and self.peers is not None else 0.0
        deadline = time.monotonic() + grace_s
        for host in self._hosts.values():
            host.send(Close())
        for host in self._hosts.values():
            host.stop(max(0.0, deadline - time.monotonic()))
        self._hosts.clear()
        if self.peers is not None:
            self.peers.close()
        self._store = None  # nobody listens any more


class Lead(Together):
    """The learner of the run itself, where others learn beside it."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.replicas: Replicas | None = None
        self._buffers = self.buffers()
        self._layout: Layout | None = None  # of a slice; none: the others know nothing yet

    def recruit(self, config: Config, spec: EnvSpec) -> None:
        """Starts the others, or waits for them to come."""
        self.replicas = Replicas(config, spec)

    def connect(self) -> None:
        """Brings them together: from here on `learn` needs all of them."""
        assert self.replicas is not None
        self.peers = self.replicas.connect(self.device)
        self._messages = torch.zeros(self.peers.size, HEAD.size, dtype=torch.uint8)

    def learn(self, batch: Batch) -> Learned:
        """Deals a batch, takes a step with everybody, and returns what all of them found out."""
        assert self.replicas is not None
        arrays = named(batch)
        rows, rest = divmod(len(batch.rows), self.peers.size)
        assert rest == 0, "the settings are refused where a batch has no equal slices"
        self.replicas.look(0.0)
        self.replicas.intact = False  # in the middle of a step nobody could be told to end
        self._deal(arrays, rows)
        learned = super().learn(batch_of({name: array[:rows] for name, array in arrays.items()}))
        self.replicas.intact = True
        return learned

    def _deal(self, arrays: dict[str, Array], rows: int) -> None:
        buffers = {BUFFER + name: part.cpu().numpy() for name, part in self._buffers.items()}
        layout = Layout.of({name: array[:rows] for name, array in arrays.items()} | buffers)
        if layout != self._layout:
            self._tell(layout)
        for rank, message in enumerate(self._messages.numpy()):
            views, mine = layout.views(message[HEAD.size :]), slice(rank * rows, (rank + 1) * rows)
            for name, view in views.items():
                view[...] = buffers[name] if name in buffers else arrays[name][mine]
        number = self.learner_steps + self.skipped
        digest = NO_DIGEST if number % CHECK_PERIOD else self.digest()
        self._send(Head(Kind.LEARN, number, lr=self._rate, digest=digest))

    def _tell(self, layout: Layout) -> None:
        """Tells everybody the whole state, and how slices will look from now on."""
        numbers, arrays = self.state()
        del arrays["rng"]  # everybody has its own
        raw = torch.from_numpy(packed({"numbers": numbers, "layout": layout.shapes}, arrays))
        self._send(Head(Kind.TELL, size=len(raw)))
        self.peers.tell(raw)
        self._messages = torch.zeros(self.peers.size, HEAD.size + layout.size, dtype=torch.uint8)
        self._layout = layout

    def _send(self, head: Head) -> None:
        self._messages[:, : HEAD.size] = torch.from_numpy(
            np.frombuffer(HEAD.pack(*head), dtype=np.uint8).copy()
        )
        self.peers.deal(self._messages)

    @property
    def _rate(self) -> float:
        groups = [group for one in self.optimizers.values() for group in one.param_groups]
        return float(groups[0]["lr"])

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().restore(numbers, arrays)
        self._layout = None

    @property
    def pids(self) -> dict[str, int]:
        return {} if self.replicas is None else self.replicas.pids

    def close(self) -> None:
        if self.replicas is None:
            return
        try:
            if self.replicas.intact and self.replicas.peers is not None:
                self._send(Head(Kind.CLOSE))
        except LostError:
            pass  # it was gone before it could be told
        finally:
            self.replicas.close()
            self.replicas = None


def _leaves(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Returns nested settings by their full names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inside = isinstance(value, dict) and not before
        found |= _leaves(value, f"{name}.") if inside else {before + name: value}
    return found


def _first_line(error: Exception | None) -> str:
    return str(error).partition("\n")[0]

"""The leader (rank 0) of data-parallel learners, and its followers (the other ranks).

Only the leader samples batches, updates priorities, publishes weights and saves checkpoints. It
scatters every batch in equal slices, takes the gradient step together with the followers, and
gathers their TD errors. If a follower is lost, the run ends with an error. It can be resumed from
its last checkpoint with any number of learners.
"""

import json
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from rookery.config.schema import Config, Engine
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, RoleHandle
from rookery.errors import ConfigError, LostError, RoleFailed, RookeryError, noted
from rookery.learner.data_parallel import collectives, follower
from rookery.learner.data_parallel.collectives import START_S, Collectives
from rookery.learner.data_parallel.follower import BUFFER, MessageKind
from rookery.learner.data_parallel.serialization import batch_of, named_arrays, pack
from rookery.replay.shared_arrays import ArrayLayout
from rookery.types import Array, EnvSpec, LearnResult, SampledBatch, SavedState

HERE = "127.0.0.1:0"  # a free port that other machines cannot reach
CHECK_PERIOD = 1_000  # learner steps between two comparisons of all weights
CLOSE_S = 2.0
REPORT_S = 2.0  # to wait for the error report of a lost follower
POLL_S = 0.02


class FollowerGroup:
    """Starts and ends the followers of a run for its leader, and detects their failures.

    The leader is the data-parallel learner of rank 0, followers are the others. With
    `learner.rendezvous`, the user starts the followers, which connect to that address.
    """

    def __init__(self, config: Config, spec: EnvSpec):
        self._config, self._count = config, config.learner.replicas
        self._store = collectives.listen(config.learner.rendezvous or HERE)
        self._address = f"{self._store.host}:{self._store.port}"
        self._hosts: dict[int, RoleHandle[object, object]] = {}
        self._failures: dict[int, RoleFailed] = {}
        self.collectives: Collectives | None = None
        self._heartbeats = collectives.HeartbeatMonitor(self._store, range(1, self._count))
        self.intact = True  # as far as is known
        if config.learner.rendezvous is None:
            self._start(spec)

    def _start(self, spec: EnvSpec) -> None:
        target = "rookery.learner.data_parallel.follower:FollowerWorker"
        start = ENGINES[Engine.PROCESSES]
        try:
            for rank in range(1, self._count):
                setup = follower.FollowerSetup(self._config, spec, rank, self._address)
                self._hosts[rank] = start(target, setup, name=f"learner-{rank}")
        except OSError:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        return {host.name: host.pid for host in self._hosts.values()}

    def connect(self, device: torch.device) -> Collectives:
        """Waits for all followers to connect; returns the collective operations of the learners.

        Raises `ConfigError` if a follower's settings differ from the leader's, and `LostError` if a
        follower does not connect within 120 s.
        """
        if missing := self._wait_for("ready", START_S):
            raise self._absent(missing)
        refusal = self._refusal()
        self._store.set("verdict", refusal)
        if refusal:
            self._wait_for("heard", REPORT_S)
            raise ConfigError(refusal)
        # a follower of this machine that hangs is killed, which ends the wait; others need a limit
        local = bool(self._hosts) and device.type == "cpu"
        limit_s = follower.FOREVER_S if local else self._config.learner.replica_timeout_s
        self.collectives = Collectives(
            self._store, collectives.FIRST, self._count, device, limit_s, others=self
        )
        return self.collectives

    def _wait_for(self, what: str, within_s: float) -> list[int]:
        """Waits until every follower has set its key WHAT/RANK in the TCP store.

        Returns the ranks that have not set it within `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        missing = list(range(1, self._count))
        while missing and time.monotonic() < deadline:
            self.check(0.0)
            missing = [rank for rank in missing if not self._store.check([f"{what}/{rank}"])]
            time.sleep(POLL_S if missing else 0.0)
        return missing

    def _refusal(self) -> str:
        """Returns a message about the first setting in which a follower differs from the leader.

        Returns "" if all settings agree.
        """
        ours = follower.shared_settings(self._config)
        for rank in range(1, self._count):
            theirs = json.loads(self._store.get(f"ready/{rank}"))
            for key in sorted({*ours, *theirs}):
                if ours.get(key) != theirs.get(key):
                    return (
                        f"learner {rank} has {key} {theirs.get(key)!r}, and the run has "
                        f"{ours.get(key)!r}; give all learners the same scenario and settings"
                    )
        return ""

    def check(self, waited_s: float) -> None:
        """Raises an error if a follower (learner of rank > 0) has failed or takes too long.

        `waited_s` are the seconds that the leader has waited; `learner.replica_timeout_s` is the
        limit.
        """
        for rank, host in self._hosts.items():
            self._examine(rank, host)
        if self._failures:
            raise self.lost()
        started_by_user = not self._hosts and self.collectives is not None
        if started_by_user and (quiet := self._heartbeats.silent()) is not None:
            silent = f"learner {quiet} has sent no heartbeat for {collectives.SILENT_S:g} s"
            raise self.lost(TimeoutError(silent))
        limit_s = self._config.learner.replica_timeout_s
        if waited_s >= limit_s:
            self.intact = False
            raise LostError(
                f"one of {self._count} learners has kept the others waiting for {waited_s:.0f} s "
                f"(learner.replica_timeout_s is {limit_s:g}); raise the limit if steps take that "
                "long; `rookery train --resume` continues from the last checkpoint"
            )

    def lost(self, error: Exception | None = None) -> RookeryError:
        """Returns the error to raise for a lost follower, with its error report if there is one."""
        self.intact = False
        reason = "" if error is None else follower.first_line(error)
        rank, failure = self._cause() or (None, RoleFailed(reason, "", final=False))
        if failure.final and self.collectives is None:
            _, _, message = failure.summary.partition(": ")
            return noted(ConfigError(f"learner {rank}: {message}"), failure.traceback)
        who = "one" if rank is None else f"number {rank}"
        last = LostError(
            f"{who} of {self._count} learners was lost ({failure.summary}); `rookery train "
            "--resume` continues from the last checkpoint, with any number of --learners"
        )
        return noted(last, failure.traceback)

    def _cause(self) -> tuple[int, RoleFailed] | None:
        """Returns rank and error report of the follower that caused a failure, or None.

        A follower that raised an error itself comes before one that only lost another learner.
        None means that no follower of this machine has reported a failure.
        """
        deadline = time.monotonic() + REPORT_S
        while self._hosts:
            for rank, host in self._hosts.items():
                self._examine(rank, host)
            noticed = follower.LearnerGroupLostError.__name__  # of another learner's loss
            found = list(self._failures.items())
            own = [item for item in found if not item[1].summary.startswith(noticed)]
            if own or time.monotonic() > deadline:
                return next(iter(own or found), None)
            time.sleep(POLL_S)
        return None

    def _examine(self, rank: int, host: RoleHandle[object, object]) -> None:
        if rank in self._failures:
            return
        alive, message = host.alive, host.receive()
        if isinstance(message, RoleFailed):
            self._failures[rank] = message
        elif not alive:  # and sent no report
            self._failures[rank] = RoleFailed(f"exit status {host.stop(0.0)}", "", final=False)

    def _absent(self, missing: list[int]) -> LostError:
        names, hint = ", ".join(map(str, missing)), f"RANK={missing[0]} and the same settings"
        return LostError(
            f"of {self._count} learners, {names} did not connect to {self._address} within "
            f"{START_S:g} s; start each of them with a rank, such as {hint}"
        )

    def close(self) -> None:
        """Ends the followers on this machine; first gives them a short time to end themselves."""
        grace_s = CLOSE_S if self.intact and self.collectives is not None else 0.0
        deadline = time.monotonic() + grace_s
        for host in self._hosts.values():
            host.send(CloseRole())
        for host in self._hosts.values():
            host.stop(max(0.0, deadline - time.monotonic()))
        self._hosts.clear()
        if self.collectives is not None:
            self.collectives.close()
        self._store = None  # type: ignore[assignment]  # closes the rendezvous


class LeaderLearner(follower.DataParallelLearner):
    """Data-parallel learner of rank 0, which distributes slices of its batches to the others."""

    followers: FollowerGroup | None = None
    _layout: ArrayLayout | None = None  # of a message; None: followers have no state yet

    def start_followers(self, config: Config, spec: EnvSpec) -> None:
        """Starts the followers (learners of rank > 0) as processes on this machine.

        If `learner.rendezvous` is set, only listens at that address for followers that the user
        starts.
        """
        self.followers = FollowerGroup(config, spec)

    def connect(self) -> None:
        """Waits until all followers have connected; must be called before `learn`."""
        assert self.followers is not None
        self.collectives = self.followers.connect(self.device)
        self._allocate_messages(ArrayLayout(follower.HEADER))

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Scatters a batch to the followers (other learners) and takes a gradient step with them.

        The result holds the TD errors of the whole batch.
        """
        assert self.followers is not None
        arrays = named_arrays(batch)
        rows, rest = divmod(len(batch.rows), self.collectives.size)
        assert rest == 0, "the settings are refused where a batch has no equal slices"
        self.followers.check(0.0)
        self.followers.intact = False  # during a step followers cannot receive a close message
        self._scatter(arrays, rows)
        learned = super().learn(batch_of({name: array[:rows] for name, array in arrays.items()}))
        self.followers.intact = True
        return learned

    def _scatter(self, arrays: dict[str, Array], rows: int) -> None:
        buffers = {BUFFER + name: part.cpu().numpy() for name, part in self.buffers.items()}
        mine = ArrayLayout.of({name: array[:rows] for name, array in arrays.items()} | buffers)
        layout = ArrayLayout(follower.HEADER | mine.shapes)
        if layout != self._layout:
            self._broadcast_state(layout)
        for rank, message in enumerate(self._messages):
            for name, array in arrays.items():
                message[name][...] = array[rank * rows : (rank + 1) * rows]
        number = self.learner_steps + self.skipped
        digest = follower.NO_DIGEST if number % CHECK_PERIOD else self.digest()
        header: dict[str, npt.ArrayLike] = {
            "header/number": number,
            "header/lr": next(iter(self.optimizers.values())).param_groups[0]["lr"],
            "header/digest": np.frombuffer(digest, dtype=np.uint8),
        }
        self._send(MessageKind.LEARN, header | buffers)

    def _broadcast_state(self, layout: ArrayLayout) -> None:
        """Sends the learner's whole state and the layout of batch slices to all followers."""
        numbers, arrays = self.state()
        del arrays["rng"]  # each learner has its own
        raw = torch.from_numpy(pack({"numbers": numbers, "layout": layout.shapes}, arrays))
        self._send(MessageKind.LOAD_STATE, {"header/size": len(raw)})
        self.collectives.broadcast(raw)
        self._allocate_messages(layout)
        self._layout = layout

    def _allocate_messages(self, layout: ArrayLayout) -> None:
        """Allocates one message for each learner: rows of one tensor, and their named arrays."""
        self._raw = torch.zeros(self.collectives.size, layout.size, dtype=torch.uint8)
        self._messages = [layout.views(row) for row in self._raw.numpy()]

    def _send(self, kind: MessageKind, common: dict[str, npt.ArrayLike]) -> None:
        """Sends each follower its message, after writing the arrays that all have in common."""
        for message in self._messages:
            for name, value in ({"header/kind": kind} | common).items():
                message[name][...] = value
        self.collectives.scatter(self._raw)

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array]) -> None:
        super().restore(numbers, arrays)
        self._layout = None

    @property
    def pids(self) -> dict[str, int]:
        return {} if self.followers is None else self.followers.pids

    def close(self) -> None:
        if self.followers is None:
            return
        try:
            if self.followers.intact and self.followers.collectives is not None:
                self._send(MessageKind.CLOSE, {})
        except LostError:
            pass  # a follower is gone already
        finally:
            self.followers.close()
            self.followers = None

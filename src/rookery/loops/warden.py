"""The warden: starts the oracle, sees whether it lives, and starts the next one where it does not.

Actors wait meanwhile. Too many losses in a row, without an answer in between, end the run, with the
oracle's own traceback.
"""

import time
from typing import Any

from rookery.booth import Booths, Done
from rookery.config.schema import Config
from rookery.engines import ENGINES
from rookery.engines.interface import Close, Failed, Host, copies
from rookery.errors import ConfigError, LostError, noted
from rookery.loops.oracle import Ready, Setup
from rookery.manage.patience import Patience, back_off_s
from rookery.types import EnvSpec

START_S = 120.0  # for a fresh interpreter to import what it needs, and for a GPU to wake up
CLOSE_S = 1.0


class Warden:
    """Keeps one oracle alive."""

    def __init__(self, config: Config, spec: EnvSpec, booths: Booths, board_fd: int):
        self._config, self._spec, self._booths, self._board_fd = config, spec, booths, board_fd
        self._host: Host | None = None
        self._failed: Failed | None = None
        self._heard = False  # anything, of this oracle
        self._proven = False  # one has answered: the settings can be answered with
        self._patience = Patience()
        self._strikes, self._next_try, self._answered = 0, 0.0, 0
        self._logged, self._logged_at = Done(), time.monotonic()
        self.restarts = 0
        self._complaints: list[str] = []
        self._begin()

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._host is None else {self._host.name: self._host.pid}

    def look_after(self) -> None:
        """Takes its news, and replaces it where that is needed."""
        if self._host is None:
            if time.monotonic() >= self._next_try:
                self._again()
            return
        self._hear(self._host)
        if trouble := self._trouble(self._host):
            self._lose(self._host, trouble)

    def take_complaints(self) -> list[str]:
        """Returns what went wrong since the last call."""
        found, self._complaints = self._complaints, []
        return found

    def metrics(self) -> dict[str, float]:
        """What was answered since the last call, and how long actors waited for it."""
        now, done, last = time.monotonic(), self._booths.done, self._logged
        took, self._logged, self._logged_at = now - self._logged_at, done, now
        questions, batches = done.questions - last.questions, done.batches - last.batches
        if not (questions and batches and took > 0):
            return {"inference/restarts": float(self.restarts)}
        return {
            "inference/restarts": float(self.restarts),
            "inference/requests_per_s": questions / took,
            "inference/requests_per_batch": questions / batches,
            "inference/batch": (done.observations - last.observations) / batches,
            "inference/wait_ms": 1e3 * (done.waited_s - last.waited_s) / questions,
        }

    def _begin(self) -> None:
        booths_fd, board_fd = copies(self._booths.fd, self._board_fd)
        self._booths.beat()
        self._patience, self._failed, self._heard = Patience(), None, False
        self._answered = self._booths.done.questions
        self._host = ENGINES[self._config.engine](
            "rookery.loops.oracle:Oracle",
            Setup(self._config, self._spec, booths_fd, board_fd),
            name="oracle",
            fds=[booths_fd, board_fd],
        )

    def _again(self) -> None:
        try:
            self._begin()
        except OSError as error:
            self._count(f"could not be started: {error}", "")
            return
        self.restarts += 1

    def _hear(self, host: Host) -> None:
        message: Any = host.receive()
        if isinstance(message, Failed):
            self._failed = message
        elif isinstance(message, Ready):
            self._heard = self._proven = True

    def _trouble(self, host: Host) -> str | None:
        if not host.alive and self._failed is None:
            self._hear(host)  # what it said before it went
        if self._failed is not None:
            return self._failed.summary
        if not host.alive:
            return "died"
        limit_s = self._config.actor.env_step_timeout_s
        allowed_s = limit_s + (0 if self._heard else START_S)
        if not self._patience.at_end(self._booths.silence_s, allowed_s):
            return None
        return (
            f"has not moved for {self._patience.silent_s:.0f} s "
            f"(actor.env_step_timeout_s is {limit_s:g})"
        )

    def _lose(self, host: Host, trouble: str) -> None:
        self._host, failed = None, self._failed
        status = host.stop(0.0)
        if failed is not None and failed.final and not self._proven:
            _, _, message = failed.summary.partition(": ")
            raise noted(ConfigError(f"the inference server: {message}"), failed.traceback)
        if failed is None and status is not None:
            trouble += f" (exit status {status})"
        if self._booths.done.questions > self._answered:
            self._strikes = 0
        self._count(trouble, failed.traceback if failed else "")

    def _count(self, trouble: str, its_traceback: str) -> None:
        """Says when to try again, or that this was once too often."""
        self._strikes += 1
        most = self._config.actor.max_restarts
        if self._strikes > most:
            lost = LostError(
                f"the inference server was lost {self._strikes} times in a row, the last time: "
                f"{trouble}; see its own words, use --inference local, or raise "
                f"actor.max_restarts ({most})"
            )
            raise noted(lost, its_traceback)
        wait_s = back_off_s(self._strikes)
        self._next_try = time.monotonic() + wait_s
        self._complaints.append(
            f"the inference server was lost ({trouble}) and is replaced"
            + (f" in {wait_s:g} s" if wait_s else "")
        )

    def close(self) -> None:
        """Ends it. Actors must be gone: they would wait for it."""
        if self._host is not None:
            host, self._host = self._host, None
            host.send(Close())
            host.stop(CLOSE_S if self._heard else 0.0)

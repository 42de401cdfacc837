"""Supervision of the inference server: starts its process, and restarts it when it fails.

Actors wait meanwhile. Too many failures in a row, without an answered request in between, end the
run with the server's traceback.
"""

import time

from rookery.actors.inference.inference_server import InferenceReady, InferenceSetup
from rookery.actors.inference.slots import InferenceSlots, InferenceTotals
from rookery.config.schema import Config
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, RoleFailed, RoleHandle, copies
from rookery.runtime.supervision import Supervision
from rookery.types import EnvSpec

START_S = 120.0  # for a fresh interpreter to import what it needs, and for a GPU to start
CLOSE_S = 1.0

ServerHandle = RoleHandle[None, InferenceReady]


class InferenceSupervisor:
    """Starts the inference server process, restarts it when it fails, and reports its metrics."""

    def __init__(self, config: Config, spec: EnvSpec, slots: InferenceSlots, weights_fd: int):
        self._config, self._spec, self._slots, self._weights_fd = config, spec, slots, weights_fd
        self._host: ServerHandle | None = None
        self._watch = Supervision(
            "the inference server",
            max_restarts=config.actor.max_restarts,
            start_s=START_S,
            remedy="see its own error, use --inference local",
        )
        self._answered = 0  # requests, before the present server started
        self._logged, self._logged_at = InferenceTotals(), time.monotonic()
        self.restarts = 0
        self._warnings: list[str] = []
        self._start()

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._host is None else {self._host.name: self._host.pid}

    def supervise(self) -> None:
        """Reads the inference server's messages; restarts the server if it died or hangs.

        Raises LostError, which ends the run, after too many failures in a row.
        """
        if self._host is None:
            if self._watch.due:
                self._replace()
            return
        self._hear(self._host)
        if trouble := self._trouble(self._host):
            self._lose(self._host, trouble)

    def take_warnings(self) -> list[str]:
        """Returns the warnings about failures of the inference server since the last call."""
        found, self._warnings = self._warnings, []
        return found

    def metrics(self) -> dict[str, float]:
        """Returns the inference server's request rate, batch size and mean waiting time of actors.

        The values cover the time since the last call. If no request was answered in that time, only
        the number of restarts is returned.
        """
        now, done, last = time.monotonic(), self._slots.done, self._logged
        took, self._logged, self._logged_at = now - self._logged_at, done, now
        requests, batches = done.questions - last.questions, done.batches - last.batches
        if not (requests and batches and took > 0):
            return {"inference/restarts": float(self.restarts)}
        return {
            "inference/restarts": float(self.restarts),
            "inference/requests_per_s": requests / took,
            "inference/requests_per_batch": requests / batches,
            "inference/batch": (done.observations - last.observations) / batches,
            "inference/wait_ms": 1e3 * (done.waited_s - last.waited_s) / requests,
        }

    def _start(self) -> None:
        slots_fd, weights_fd = copies(self._slots.fd, self._weights_fd)
        self._slots.beat()
        self._watch.started()
        self._answered = self._slots.done.questions
        self._host = ENGINES[self._config.engine](
            "rookery.actors.inference.inference_server:InferenceServer",
            InferenceSetup(self._config, self._spec, slots_fd, weights_fd),
            name="infer",
            fds=[slots_fd, weights_fd],
        )

    def _replace(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._warnings.append(self._watch.count(f"could not be started: {error}"))
            return
        self.restarts += 1

    def _hear(self, host: ServerHandle) -> None:
        message = host.receive()
        if isinstance(message, RoleFailed):
            self._watch.failed(message)
        elif message is not None:
            self._watch.heard_from()

    def _trouble(self, host: ServerHandle) -> str | None:
        if not host.alive and self._watch.failure is None:
            self._hear(host)  # what it sent before it ended
        return self._watch.trouble(
            alive=host.alive,
            silence_s=self._slots.silence_s,
            limit_s=self._config.actor.env_step_timeout_s,
            setting="actor.env_step_timeout_s",
        )

    def _lose(self, host: ServerHandle, trouble: str) -> None:
        self._host = None
        status = host.stop(0.0)
        if self._slots.done.questions > self._answered:
            self._watch.recovered()
        self._warnings.append(self._watch.lost(trouble, status=status))

    def close(self) -> None:
        """Ends the inference server process.

        All actors must have ended before, or they would wait for its answers.
        """
        if self._host is not None:
            host, self._host = self._host, None
            host.send(CloseRole())
            host.stop(CLOSE_S if self._watch.heard else 0.0)

"""Supervision of the inference server: starts its process, and restarts it when it fails.

Actors wait meanwhile. Too many failures in a row, without an answered request in between, end the
run with the server's traceback.
"""

import contextlib
import time

from rookery.actors.inference.inference_server import InferenceReady, InferenceSetup
from rookery.actors.inference.slots import InferenceSlots, InferenceTotals
from rookery.actors.messages import ActorGroupSetup
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, RoleHandle, copies
from rookery.errors import RoleFailed
from rookery.runtime.supervision import Supervision

START_S = 120.0  # for a fresh interpreter to import what it needs, and for a GPU to start
CLOSE_S = 1.0

ServerHandle = RoleHandle[None, InferenceReady]


class InferenceSupervisor:
    """Starts the inference server process, restarts it when it fails, and reports its metrics.

    It owns the shared memory through which actors ask that process.
    """

    def __init__(self, setup: ActorGroupSetup):
        config, self._setup = setup.config, setup
        self.slots = InferenceSlots(config.actor, setup.spec, setup.memory)
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
        self.warnings: list[str] = []  # about its failures, not taken yet

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._host is None else {self._host.name: self._host.pid}

    def supervise(self) -> None:
        """Reads the inference server's messages; restarts the server if it died or hangs.

        Raises LostError, which ends the run, after too many failures in a row.
        """
        if self._host is not None:
            self._hear(self._host)
            if trouble := self._trouble(self._host):
                self._lose(self._host, trouble)
        elif self._watch.due:
            self._replace()

    def metrics(self) -> dict[str, float]:
        """Returns the inference server's request rate, batch size and mean waiting time of actors.

        The values cover the time since the last call. If no request was answered in that time, only
        the number of restarts is returned.
        """
        now, done, last = time.monotonic(), self.slots.done, self._logged
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

    def start(self) -> None:
        """Starts a server process; raises OSError if the operating system refuses."""
        config, spec = self._setup.config, self._setup.spec
        slots_fd, weights_fd = copies(self.slots.fd, self._setup.weights_fd)
        self.slots.beat()
        self._watch.started()
        self._answered = self.slots.done.questions
        self._host = ENGINES[config.engine](
            "rookery.actors.inference.inference_server:InferenceServer",
            InferenceSetup(config, spec, slots_fd, weights_fd),
            name="infer",
            fds=[slots_fd, weights_fd],
        )

    def _replace(self) -> None:
        try:
            self.start()
        except OSError as error:
            self.warnings.append(self._watch.count(f"could not be started: {error}"))
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
            silence_s=self.slots.silence_s,
            limit_s=self._setup.config.actor.env_step_timeout_s,
        )

    def _lose(self, host: ServerHandle, trouble: str) -> None:
        self._host = None
        status = host.stop(0.0)
        if self.slots.done.questions > self._answered:
            self._watch.recovered()
        self.warnings.append(self._watch.lost(trouble, status=status))

    def close(self) -> None:
        """Ends the inference server process.

        All actors must have ended before, or they would wait for its answers.
        """
        with contextlib.closing(self.slots):
            if self._host is not None:
                host, self._host = self._host, None
                host.send(CloseRole())
                host.stop(CLOSE_S if self._watch.heard else 0.0)

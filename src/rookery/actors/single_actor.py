"""One actor in the learner's process, called directly (`run.mode single`).

There is no process engine and no message between the training loop and the actor. An error of the
environment is raised in the loop, and a hung environment ends the run: it cannot be restarted.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from rookery.actors.actor import Actor, transport
from rookery.actors.actor_group import ActorGroupState, refuse_other_actors
from rookery.actors.env_progress import Progress
from rookery.actors.messages import ActorReport, ActorSetup
from rookery.actors.start_errors import unstarted
from rookery.actors.worker import TRACE_S, ActorWorker, refuse_full_gpu
from rookery.config.schema import Config
from rookery.engines.engine import copies
from rookery.envs.env_calls import EnvCalls
from rookery.envs.make import Envs, Factory
from rookery.errors import RookeryError, StalledError
from rookery.event import Activity, Counters
from rookery.replay.ring import Ring
from rookery.report.metrics.trace import Trace
from rookery.runtime.hang_watch import HangWatch
from rookery.runtime.watchdog import Hung
from rookery.types import EnvSpec

REMEDY = (
    "correct the environment, raise the limit, or use --mode sync or async with --engine "
    "processes, where a hung actor is replaced"
)


class InlineWatch(HangWatch):
    """Watchdog thread that checks the heartbeat of the actors that run in this process."""

    def __init__(self, config: Config, spec: EnvSpec, envs: Envs | None):
        """Starts the thread; `envs` are those of the first actor, if they were made before."""
        calls = EnvCalls() if envs is None else envs.calls
        super().__init__(spec.name, config.actor.env_step_timeout_s, calls, REMEDY)

    @contextlib.contextmanager
    def watch(self, ring: Ring) -> Iterator[None]:
        """Context manager around a call of the actor that writes to `ring`; detects if it hangs.

        Raises StalledError if the actor sends no heartbeat for `actor.env_step_timeout_s` seconds.
        """
        ring.beat()
        self.calls.beat = ring.beat
        self.heartbeat = ring
        try:
            yield
        except Hung as hung:
            raise StalledError(str(hung)) from None
        finally:
            self.heartbeat = None


class SingleActor:
    """The only actor of a run in single mode: implements `ActorGroup` in the learner's process."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        *,
        weights_fd: int,
        factory: Factory | None = None,
        envs: Envs | None = None,
        incarnation: int = 0,
        progress: Sequence[Sequence[object]] = (),
        opponents: object = None,
    ):
        """Builds the actor; it plays `envs`, or makes its own environments if `envs` is None."""
        self._incarnation, self._config = incarnation, config
        with contextlib.ExitStack() as stack:
            self.ring = transport(spec, config.actor, index=0, incarnation=incarnation)
            stack.callback(self.ring.close)
            self._hangs = InlineWatch(config, spec, envs)
            stack.callback(self._hangs.close)
            try:
                ring_fd, weights_fd = copies(self.ring.fd, weights_fd)
            except OSError as error:
                raise unstarted("actor 0 of 1", error) from error
            setup = ActorSetup(
                config,
                factory,
                0,
                incarnation,
                ring_fd,
                weights_fd,
                envs=envs,
                opponents=opponents,
                progress=Progress(progress).of(0),
                calls=self._hangs.calls,
            )
            self._worker = self._started(setup, [ring_fd, weights_fd])
            self._trace = Trace("actor-0")
            stack.pop_all()

    def _started(self, setup: ActorSetup, fds: Sequence[int]) -> ActorWorker:
        try:
            with self._hangs.watch(self.ring):
                return ActorWorker(setup)
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, OSError) and not isinstance(error, RookeryError):
                raise unstarted("actor 0 of 1", error) from error
            raise

    @property
    def actor(self) -> Actor:
        return self._worker.actor

    @property
    def rings(self) -> list[Ring]:
        """The ring buffer into which the actor writes its env steps for replay, in a list."""
        return [self.ring]

    @property
    def pids(self) -> dict[str, int]:
        """Always empty: the actor runs in the learner's process."""
        return {}

    @property
    def complete(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        return {}

    def warnings(self) -> Iterator[str]:
        """Yields nothing: the actor's errors are raised instead."""
        return iter(())

    def asynchronous(self) -> None:
        """Returns None: async mode is not supported, since the actor runs in the training loop."""

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[ActorReport]]:
        (epsilon,) = epsilons
        while True:
            report = self._play(env_steps, episodes, epsilon)
            yield [report]
            if not report.left:
                return
            episodes = report.left

    def _play(self, env_steps: int, episodes: int | None, epsilon: float) -> ActorReport:
        """Plays at least `env_steps` steps, or `episodes` episodes if given; returns a report.

        First loads the newest published weights if `actor.pull_period` env steps have passed since
        weights were loaded.
        """
        actor = self.actor
        with self._hangs.watch(self.ring):
            if actor.due() and self._worker.weight_store is not None:
                actor.pull(self._worker.weight_store)
            began = time.monotonic()
            try:
                if episodes is None:
                    played = actor.collect(env_steps, epsilon)
                else:
                    played = actor.collect_episodes(episodes, epsilon)
            except RuntimeError as error:
                refuse_full_gpu(self._config, 0, error)
                raise
        self._trace.note(Activity.PLAY, began, time.monotonic(), played.env_steps)
        left = 0 if episodes is None else max(0, episodes - len(played.ended))
        traced = self._trace.take(Counters()) if self._trace.age_s >= TRACE_S else None
        return ActorReport(played.env_steps, played.ended, epsilon, actor.version, left, traced)

    def save(self) -> ActorGroupState:
        with self._hangs.watch(self.ring):
            return ActorGroupState([self._incarnation], [self._worker.save()])

    def restore(self, state: ActorGroupState) -> None:
        refuse_other_actors(state, 1)
        with self._hangs.watch(self.ring):
            self._worker.restore(state.actors[0])

    def cut(self) -> None:
        with self._hangs.watch(self.ring):
            self.actor.cut()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.ring.close)
            stack.callback(self._hangs.close)
            with self._hangs.watch(self.ring):
                self._worker.close()

"""Asynchronous training (A3C, Mnih et al. 2016): every worker plays and computes gradients.

Each worker is a process with its own environments and its own copy of the networks. It takes the
newest parameters, plays, computes a gradient and hands it to the server, which applies it however
many others have come meanwhile. How old gradients were is counted, and the server's staleness rule
decides what they are worth.

`GradientWorkers` are a run's actors whose rings carry gradients instead of env steps: started,
watched and replaced as any (`actors/local_group.py`). Processes, not threads: environments and
small networks hold Python's lock most of the time. A gradient waits in its worker's ring until the
server has it; the worker then begins the next one with the newest parameters.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from rookery import seeding
from rookery.actors.local_group import ActorSeat, LocalActors
from rookery.actors.messages import ActorGroupSetup, ActorReport
from rookery.actors.policy import NONE, Recipe
from rookery.components.agents import DistributedAgent
from rookery.components.custom_policy import answer
from rookery.components.environment import ENDLESS, DistributedEnvironment
from rookery.components.experience import KEYS
from rookery.components.loop_parts import LoopPlan, ServerLearner, capacity, played_elsewhere
from rookery.components.main_loop import LoopConfig, MainLoop
from rookery.components.protocols import checked_methods
from rookery.components.replay_buffers import ReplayBufferPool
from rookery.config.checks import Count, CountOr0
from rookery.config.schema import ActorConfig, Config, EnvConfig, Mode, RunConfig
from rookery.engines.engine import copies
from rookery.envs.make import Factory, make_one
from rookery.errors import ConfigError
from rookery.event import Episode, Event
from rookery.learner.weight_store import WeightStore
from rookery.replay.limiter import Limiter
from rookery.replay.replay import Inserted
from rookery.replay.ring import Ring
from rookery.runtime.signals import Interrupts
from rookery.seeding import Role
from rookery.server.gradient_worker import BATCH, RunSetup, Setup, Update, schema_for
from rookery.training.build import Parts
from rookery.types import Array, EnvSpec, LearnResult

WORKERS = 4
UNTIL_STOPPED = LoopPlan("env_steps", ENDLESS, None)


@checked_methods
class AsyncMainLoop(MainLoop):
    """A `MainLoop` whose workers learn by themselves.

    loop = AsyncMainLoop(environment, replay_buffer, agent, param_server, num_workers=8)
    loop.run_async_training(total_steps=1_000_000)
    loop.get_training_progress()["stale"]                    # versions behind → gradients

    `num_workers` and `num_async_workers` are the same. The agent is one of ours, of any algorithm,
    or one of yours that can be pickled; the environment needs an `env_factory`. Where an algorithm
    learns from replay, each worker has its share of the buffer's capacity; what was stored in the
    buffer itself is not looked at. Pausing, checkpoints and signals are as in `MainLoop`.
    """

    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        config: LoopConfig | Mapping[str, Any] | None = None,
        num_workers: Count | None = None,
        num_async_workers: Count | None = None,
    ):
        super().__init__(environment, replay_buffer, agent, parameter_server, config)
        self.num_workers = agreed(num_workers, num_async_workers)
        self.workers: GradientWorkers | None = None  # of the training that began last
        self.stale: Counter[int] = Counter()  # versions that a gradient was old → how many were

    def run_async_training(
        self,
        total_steps: Count = 1_000_000,
        evaluation_frequency: CountOr0 = 0,
        checkpoint_frequency: CountOr0 = 0,
    ) -> dict[str, Any]:
        """Trains until all workers together have played `total_steps` env steps.

        Evaluates and saves every so many env steps; 0 is never. Returns the progress.
        `run_training` does the same, counted in episodes.
        """
        return self._train(
            LoopPlan("env_steps", total_steps, None, evaluation_frequency, checkpoint_frequency)
        )

    def build(self, plan: LoopPlan) -> Parts:
        """Starts the workers, and returns the parts that their gradients pass through."""
        made_from = played_elsewhere(self, plan)
        actor = getattr(getattr(self.agent, "config", None), "actor", ActorConfig())
        config = Config(
            run=RunConfig(mode=Mode.ASYNC, env_steps=ENDLESS),
            actor=ActorConfig(
                num=self.num_workers,
                chunk=1,  # a worker that brought a gradient has worked
                max_restarts=actor.max_restarts,
                env_step_timeout_s=actor.env_step_timeout_s,
            ),
        )
        spec, _ = made_from.spaces()
        parameters, setups = self.agent.get_policy_parameters(), self._setups(made_from)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(contextlib.closing(WeightStore(parameters)))
            workers = GradientWorkers(config, spec, parameters, setups, store.fd)
            stack.enter_context(contextlib.closing(workers))
            # they have the methods that the async loop calls, and not the classes
            learner: Any = GradientApplier(self, workers, store)
            replay: Any = workers
            stack.pop_all()
        # the server may step whenever a gradient waits, and workers need not wait for it
        limiter = Limiter(
            warmup=0, samples_per_insert=1.0, batch=1, slack=2 * ENDLESS, sampleable=workers.ready
        )
        limiter.insert(ENDLESS)
        self.workers = workers
        return Parts(config, spec, learner, workers, replay, limiter, store, counters=self.counters)

    def _setups(self, made_from: Recipe) -> Callable[[int, int], Any]:
        """Returns what worker i is built from, in its n-th incarnation: an agent, or a run."""
        agent: Any = self.agent
        env, factory = made_from.config.env, made_from.factory
        own: Config | None = agent.recipe.config if hasattr(agent, "recipe") else None
        if own is not None:
            own = alone(replace(own, env=env), capacity(self, own), self.num_workers)

        def setup(index: int, incarnation: int) -> Any:
            first = 0 if own is None else own.run.seed
            seed = seeding.integer(first, Role.ACTOR, index=index, incarnation=incarnation)
            if own is None:
                return OwnAgentSetup(agent, factory, env, seed)
            return RunSetup(replace(own, run=replace(own.run, seed=seed)), factory)

        return setup

    def get_training_progress(self) -> dict[str, Any]:
        """As in `MainLoop`, with how old gradients were when they arrived, in versions."""
        count = self.stale.total()
        total = sum(age * n for age, n in self.stale.items())
        return {
            **super().get_training_progress(),
            "workers": self.num_workers,
            "restarts": 0 if self.workers is None else self.workers.restarts,
            "staleness": total / count if count else 0.0,
            "stale": dict(sorted(self.stale.items())),
        }


@checked_methods
class AsyncAgent(DistributedAgent):
    """An agent whose workers learn in the background (A3C, Mnih et al. 2016).

    agent = AsyncAgent("a2c", num_workers=4, env="CartPole-v1")
    agent.start_async_training()                 # returns at once
    agent.get_training_stats()["gradients"]; agent.act(obs)
    agent.stop_async_training()                  # the agent has what was learned

    Workers are those of `AsyncMainLoop`: processes with environments and networks of their own.
    """

    def __init__(
        self,
        algorithm: str = "a2c",
        *args: Any,
        num_workers: Count = WORKERS,
        env: Any = "CartPole-v1",
        settings: Mapping[str, Any] = NONE,
        **options: Any,
    ):
        """Other arguments are those of a `DistributedAgent`."""
        super().__init__(algorithm, *args, env=env, settings=settings, **options)
        self.num_workers, self.env_factory = num_workers, env
        self.settings = {key: v for key, v in settings.items() if key.startswith("env.")}
        self._loop: AsyncMainLoop | None = None  # while it trains
        self._error: Exception | None = None  # what ended training before it was stopped

    def start_async_training(self, parameter_server: Any = None) -> None:
        """Starts the workers. Without a server the agent has one that steps as it would itself.

        Call it from the main thread: workers end with the thread that started them.
        """
        if self._loop is not None:
            raise ConfigError(
                "this agent is training already; call stop_async_training before you start again"
            )
        environment = DistributedEnvironment(self.env_factory, settings=self.settings)
        buffer = ReplayBufferPool(1, self.config.replay.capacity)
        loop = AsyncMainLoop(
            environment, buffer, self, parameter_server, num_workers=self.num_workers
        )
        events = loop.events(UNTIL_STOPPED, Interrupts())
        while loop.parts is None:  # the workers are started in this thread
            next(events)
        self._loop, self._error = loop, None
        self._thread = threading.Thread(
            target=self._train, args=[events], name="training", daemon=True
        )
        self._thread.start()

    def _train(self, events: Iterator[Event]) -> None:
        try:
            deque(events, maxlen=0)
        except Exception as error:  # `stop_async_training` raises it, whatever it was
            self._error = error

    def stop_async_training(self) -> dict[str, Any]:
        """Ends the workers, takes over what was learned, and returns the statistics.

        What ended training before, such as a worker that was lost too often, is raised here.
        """
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.stop_training()
            self._thread.join()
            loop.pull()
            if self._error is not None:
                raise self._error
        return self.get_training_stats()

    def get_training_stats(self) -> dict[str, Any]:
        """As of any agent; while workers are training, also what they have done so far."""
        stats = super().get_training_stats()
        if self._loop is None:
            return stats
        return {**stats, **self._loop.get_training_progress(), "alive": self._thread.is_alive()}


def agreed(num_workers: int | None, num_async_workers: int | None) -> int:
    """Returns the number of workers, which has two names."""
    named = {number for number in (num_workers, num_async_workers) if number is not None}
    if len(named) > 1:
        raise ConfigError(
            f"num_workers and num_async_workers are the same, got {num_workers} and "
            f"{num_async_workers}; give one of them"
        )
    return named.pop() if named else WORKERS


def alone(config: Config, capacity: int, num: int) -> Config:
    """Returns the settings of one of `num` workers: a single run without an end."""
    replay, actor = config.replay, config.actor
    warmup = max(replay.batch_size, replay.learning_starts // num)
    return replace(
        config,
        run=replace(config.run, mode=Mode.SINGLE, env_steps=ENDLESS, episodes=None, minutes=None),
        actor=replace(actor, num=1, epsilon_steps=max(1, actor.epsilon_steps // num)),
        replay=replace(replay, learning_starts=warmup, capacity=max(warmup, capacity // num)),
        learner=replace(config.learner, publish_period=ENDLESS),
    )


class ArrivedGradient(NamedTuple):
    """A gradient that waits in its worker's ring."""

    worker: int
    ring: Ring
    arrays: dict[str, Array]
    version: int  # of the parameters that it was computed with
    rows: None = None


class GradientWorkers(LocalActors):
    """Worker processes that compute gradients; they read parameters from a weight store.

    They are a run's actors, and its replay: their gradients are the batches.
    """

    version = 0

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        parameters: dict[str, Array],
        setup_of: Callable[[int, int], Any],
        weights_fd: int,
    ):
        """`setup_of` returns what worker i is built from, in its n-th incarnation."""
        self.parameters, self._setup_of = parameters, setup_of
        self._bounds = np.cumsum([array.size for array in parameters.values()])[:-1]
        self._next = 0  # worker whose turn it is
        self._unreported = 0  # env steps that the loop was not told of yet
        super().__init__(ActorGroupSetup(config, spec, weights_fd))

    def _ring(self, number: int, incarnation: int) -> Ring:
        ring = Ring.create(schema_for(self.parameters), 1)
        ring.beat()
        return ring

    def _start(self, seat: ActorSeat) -> None:
        ring_fd, weights_fd = copies(self.rings[seat.index].fd, self.setup.weights_fd)
        own = self._setup_of(seat.number, seat.incarnation)
        seat.host = self._start_role(
            "rookery.server.gradient_worker:GradientWorker",
            Setup(own, self.parameters, ring_fd, weights_fd),
            name=f"worker-{seat.number}",
            fds=[ring_fd, weights_fd],
        )
        seat.watch.started()

    def reports(self) -> list[ActorReport]:
        reports = super().reports()
        self._unreported += sum(report.env_steps for report in reports)
        return reports

    def ready(self) -> bool:
        """Returns whether a gradient waits."""
        return any(ring.waiting for ring in self.rings)

    def insert(self) -> Inserted:
        """Returns the env steps that workers have reported since the last call."""
        steps, self._unreported = self._unreported, 0
        return Inserted(-1, 0, steps)

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrivedGradient:
        """Returns the next gradient that waits, from the workers in turn."""
        turn = np.roll(range(len(self.rings)), -self._next).tolist()
        worker = next(index for index in turn if self.rings[index].waiting)
        self._next, ring = worker + 1, self.rings[worker]
        parts = np.split(ring.columns["gradient"][0].copy(), self._bounds)
        named = zip(self.parameters.items(), parts, strict=True)
        arrays = {name: part.reshape(array.shape) for (name, array), part in named}
        return ArrivedGradient(worker, ring, arrays, int(ring.columns["version"][0]) - 1)

    def close(self) -> None:
        """Ends the workers; does nothing if they have ended."""
        if self.rings:
            super().close()
            self.rings.clear()


class GradientApplier(ServerLearner):
    """The parameter server as a run's learner: it applies gradients, and publishes what came of it.

    To the server, workers are parts of one client, `name/i`.
    """

    def __init__(self, loop: "AsyncMainLoop", workers: GradientWorkers, store: WeightStore):
        super().__init__(loop)
        self._async_loop, self._store, self._version = loop, store, -1
        self._names = [f"{loop.config.worker}/{seat.number}" for seat in workers.seats]
        for name in self._names:
            loop.parameter_server.register_worker(name)
        self._publish()

    def learn(self, gradient: ArrivedGradient) -> LearnResult:
        """Hands a gradient over; what it changed is published before its worker continues."""
        age = max(0, self._version - gradient.version)
        receipt = self._loop.parameter_server.push_gradients(
            self._names[gradient.worker], gradient.arrays, version=gradient.version
        )
        self._loop.count_gradient(receipt)
        if isinstance(self._loop.agent, DistributedAgent):  # its next parameters are a step newer
            self._loop.agent.owed += 1
        self._async_loop.stale[age] += 1
        self._publish()
        gradient.ring.consume(gradient.ring.committed)
        return LearnResult(None, {"staleness": float(age)})

    def _publish(self) -> None:
        """Publishes the server's newest parameters. Versions of a store begin with 1."""
        newer = self._loop.parameter_server.get_parameters(newer_than=self._version)
        if newer is not None:
            self._version = newer.version
            self._store.publish(newer.arrays, version=newer.version + 1)

    def close(self) -> None:
        leave = getattr(self._loop.parameter_server, "unregister_worker", None)
        for name in self._names if leave is not None else ():
            leave(name)  # type: ignore[misc]


class OwnAgentSetup(NamedTuple):
    """What a worker is built from that plays with a copy of a user's own agent."""

    agent: Any
    env_factory: Factory | None
    env: EnvConfig
    seed: int

    made_by: str = "rookery.components.async_loop:OwnAgentWorker"


class OwnAgentWorker:
    """Plays one environment with a user's agent, a batch at a time; keeps nothing."""

    def __init__(self, setup: OwnAgentSetup):
        self.agent, self.env_steps, self.ended = setup.agent, 0, list[Episode]()
        self.env = RecordEpisodeStatistics(make_one(setup.env, setup.env_factory))
        self._obs = self.env.reset(seed=setup.seed)[0]

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        self.agent.set_policy_parameters(dict(parameters))

    def step(self) -> Update | None:
        steps = [self._step() for _ in range(int(getattr(self.agent, "batch_size", BATCH)))]
        columns = zip(KEYS, zip(*steps, strict=True), strict=True)
        gradients = self.agent.compute_gradients({key: np.stack(each) for key, each in columns})
        return Update(gradients) if gradients else None

    def _step(self) -> tuple[Any, ...]:
        """Returns an env step, as values of KEYS."""
        obs, action = self._obs, answer(self.agent, self._obs)
        after, reward, terminated, truncated, info = self.env.step(action)
        self._obs, self.env_steps = after, self.env_steps + 1
        if terminated or truncated:
            self.ended.append(Episode(info["episode"]["r"], info["episode"]["l"]))
            self._obs = self.env.reset()[0]
        return obs, action, np.float32(reward), after, np.bool_(terminated), np.bool_(truncated)

    def close(self) -> None:
        self.env.close()

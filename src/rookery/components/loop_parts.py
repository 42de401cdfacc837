"""Components in the places of a run's parts, so that the loops of `training/` train with them.

| part of a run | with components |
|---|---|
| actors | the environment, which plays whole episodes with the agent |
| replay | the replay buffer; for on-policy agents the rollout that was just played |
| learner | the agent computes gradients, and the parameter server applies them |
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.actors.messages import ActorReport
from rookery.actors.policy import Recipe, recipe
from rookery.components.environment import ENDLESS, limited
from rookery.components.experience import ROWS, episodes_in
from rookery.config.schema import Config, Engine, Mode, ReplayConfig, RunConfig
from rookery.errors import ConfigError
from rookery.replay.limiter import Limiter
from rookery.replay.replay import Inserted
from rookery.training.build import Parts
from rookery.types import Array, LearnResult

if TYPE_CHECKING:
    from rookery.components.main_loop import MainLoop


@dataclass(frozen=True)
class LoopPlan:
    """When training ends, and how often it evaluates and saves, in episodes or in env steps."""

    unit: str  # episodes | env_steps
    total: int
    max_steps: int | None  # env steps of an episode
    evaluation: int = 0  # 0: never
    saving: int = 0


class StoredBatch(NamedTuple):
    """A batch as a replay buffer gave it, and the numbers of its rows there, if they have any."""

    steps: Any
    rows: Any


class PlayedEpisodes:
    """The environment as a run's actors, and the replay buffer as its replay.

    The environment plays an episode in each of its workers at once. An on-policy agent learns from
    its last episodes.
    """

    version = 0

    def __init__(self, loop: "MainLoop", plan: LoopPlan):
        self._loop, self._plan = loop, plan
        self._steps: list[dict[str, Any]] = []  # of the last episodes
        self._rollout: deque[Any] = deque()  # batches of an on-policy agent

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[ActorReport]]:
        """Plays one episode per worker, but no more than the plan has left."""
        loop, most = self._loop, self._plan.max_steps or 1000
        width = int(getattr(loop.environment, "num_workers", 1))
        asked = min(width, self._plan.total - loop.episode)
        with exploring(loop.agent):
            self._steps = loop.environment.generate_experiences(loop.agent, asked, most)
        ended = episodes_in(self._steps)
        if not ended:
            raise ConfigError(
                f"environment.generate_experiences was asked for {asked} episodes and returned no "
                "step; return the steps of whole episodes"
            )
        yield [ActorReport(len(self._steps), ended, loop.version)]

    def asynchronous(self) -> None:
        """They only play when asked."""

    def warnings(self) -> Iterator[str]:
        return iter(())

    def insert(self) -> Inserted:
        """Stores what was played; `agent_steps` are the steps that batches may be drawn for."""
        count = len(self._steps)
        self._loop.replay_buffer.add_experiences(self._steps)
        return Inserted(-1, count, count, agent_steps=self._learnable())

    def _learnable(self) -> int:
        loop, each = self._loop, update_frequency(self._loop.agent)
        if getattr(loop.agent, "on_policy", False):
            self._rollout.extend(loop.agent.rollout_batches(self._steps))  # type: ignore[attr-defined]
            return each * len(self._rollout)
        if loop.replay_buffer.get_total_experiences() < loop.config.warmup:
            return 0
        per_round = loop.config.batches_per_round
        return len(self._steps) if per_round is None else each * per_round

    def sample(self, batch: int, *, beta: float = 1.0) -> StoredBatch:
        if self._rollout:
            return StoredBatch(self._rollout.popleft(), None)
        found = self._loop.replay_buffer.sample_batch(batch)
        return StoredBatch(found, found.get(ROWS))

    def update_priorities(self, rows: Any, td_error: Any) -> None:
        update = getattr(self._loop.replay_buffer, "update_priorities", None)
        if update is not None and rows is not None:
            update(rows, td_error)

    def close(self) -> None:
        """Environment and buffer are the caller's."""


class ServerLearner:
    """The agent and the parameter server as a run's learner.

    `learner` is the agent's own, where actors elsewhere play with the weights that it publishes.
    """

    def __init__(self, loop: "MainLoop", learner: Any = None):
        self._loop, self._learner = loop, learner

    @property
    def learner_steps(self) -> int:
        return self._loop.gradients

    @property
    def version(self) -> int:
        return max(0, self._loop.version)

    def learn(self, batch: Any) -> LearnResult:
        """Computes a batch's gradients and has the server apply them."""
        agent = self._loop.agent
        steps = batch.steps if isinstance(batch, StoredBatch) else batch
        gradients = agent.compute_gradients(steps)
        if not gradients:
            return LearnResult(None, {})
        self._loop.hand_over(gradients)
        metrics = {"version": float(self.version), **getattr(agent, "metrics", {})}
        return LearnResult(getattr(agent, "td_error", None), metrics)

    def due(self) -> bool:
        return self._learner is not None and bool(self._learner.due())

    def weights(self) -> dict[str, Array]:
        return dict(self._learner.weights())

    def adopt_statistics(self) -> None:
        self._learner.adopt_statistics()

    def count_skipped(self) -> None:
        """Skipped batches are counted by the agent."""

    def advance(self, share: float) -> None:
        """Learning rates are the server's."""

    def close(self) -> None:
        """The agent is the caller's."""


def sync_parts(loop: "MainLoop", plan: LoopPlan) -> Parts:
    """Returns the parts with which `training/loops.py` trains the components of a loop."""
    size, ratio = batch_size(loop.agent), batch_size(loop.agent) / update_frequency(loop.agent)
    config = Config(
        run=RunConfig(mode=Mode.SYNC, engine=Engine.INLINE, env_steps=ENDLESS),
        replay=ReplayConfig(batch_size=size, learning_starts=size, capacity=ENDLESS),
    )
    # they have the methods that the sync loop calls, and not the classes
    spec: Any = getattr(loop.agent, "spec", None)
    learner: Any = ServerLearner(loop)  # the server's version is the weights', as of a store
    played: Any = PlayedEpisodes(loop, plan)
    limiter = Limiter(warmup=0, samples_per_insert=ratio, batch=size, slack=ENDLESS)
    return Parts(config, spec, learner, played, played, limiter, learner, counters=loop.counters)


def played_elsewhere(loop: "MainLoop", plan: LoopPlan) -> Recipe:
    """Returns what other processes make the environment from, with the plan's limit of steps."""
    factory = getattr(loop.environment, "env_factory", None)
    if factory is None:
        raise ConfigError(
            "workers make environments of their own, and a "
            f"{type(loop.environment).__name__} has no env_factory to make them with; give it one: "
            "an id, a class or a function, or use MainLoop"
        )
    made_from = recipe(factory, getattr(loop.environment, "settings", {}))
    env = replace(made_from.config.env, check=False)
    if plan.max_steps is not None:
        env = limited(env, plan.max_steps)
    return made_from._replace(config=replace(made_from.config, env=env))


def capacity(loop: "MainLoop", config: Config) -> int:
    """Returns the capacity of the loop's replay buffer, or that of the settings."""
    return int(getattr(loop.replay_buffer, "capacity", config.replay.capacity))


@contextlib.contextmanager
def exploring(agent: Any) -> Iterator[None]:
    """Has `agent.act` explore, if the agent has an attribute `exploring`."""
    with contextlib.ExitStack() as stack:
        if hasattr(agent, "exploring"):
            agent.exploring = True
            stack.callback(setattr, agent, "exploring", False)
        yield


def batch_size(agent: Any) -> int:
    return int(getattr(agent, "batch_size", 32))


def update_frequency(agent: Any) -> int:
    return int(getattr(agent, "update_frequency", 4))

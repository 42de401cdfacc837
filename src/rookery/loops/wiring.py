"""Wiring: the one function that builds a run's roles from its config.

Loops, benchmarks and tests all get their parts here, so that they run the same thing.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from rookery import seeding
from rookery.algos import build_algorithm, written
from rookery.algos.team import Team
from rookery.board import Board
from rookery.config.schema import Config, Engine, Mode
from rookery.envs.make import Envs, make
from rookery.envs.pathfinding.team import Team as World
from rookery.errors import ConfigError
from rookery.event import Counters, Traced
from rookery.learner import Learner, Recorded, pick_device
from rookery.loops.company import gallery_of, tables_of
from rookery.loops.crew import Crew
from rookery.loops.freshness import Freshness
from rookery.loops.replicas import Lead
from rookery.loops.shard import build_shard
from rookery.nets.arrays import load_arrays
from rookery.replay.limiter import Limiter
from rookery.replay.pool import Pool
from rookery.replay.ring import Ring
from rookery.replay.rollouts import Epochs, Rollouts
from rookery.replay.shards import Shards
from rookery.report.trace import Trace
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.selfplay.opponents import OpponentManager
from rookery.sharing.blend import Blend
from rookery.sharing.guard import Guard
from rookery.sharing.member import Member
from rookery.types import Array, EnvSpec

if TYPE_CHECKING:
    from rookery.loops.depot import Depot
    from rookery.loops.fleet import Fleet

Factory = Callable[..., Any]
CLOCKED = (Mode.ASYNC, Mode.DEVICE)  # the modes that may look at a clock
AFAR_S = 0.05  # between two versions, at least, where they go to other hosts


@dataclass
class Parts:
    """A run's roles, and how far it is. Whoever holds them between two events may look inside."""

    config: Config
    spec: EnvSpec
    crew: "Crew | Fleet"
    learner: Learner
    pool: "Pool | Shards | Depot"
    member: Blend | None  # of a pool of runs that share
    limiter: Limiter | Epochs
    board: Board
    epsilon: Schedule
    trace: Trace
    counters: Counters = field(default_factory=Counters)
    freshness: Freshness = field(default_factory=Freshness)
    opponents: OpponentManager | None = None  # of a run that plays against its past
    published_at: float = float("-inf")
    minutes: float = 0.0  # that it has taken so far
    traced: list[Traced] = field(default_factory=list)  # by others, not written down yet

    @property
    def share(self) -> float:
        """How much of the run is over, 0 to 1, by whichever of its limits is nearer.

        Time counts only where a run is not repeated bit for bit anyway.
        """
        run, done = self.config.run, self.counters
        limits: list[tuple[float, float | None]] = [
            (done.env_steps, run.env_steps),
            (done.episodes, run.episodes),
        ]
        if run.mode in CLOCKED:
            limits.append((self.minutes, run.minutes))
        return min(1.0, max(value / limit for value, limit in limits if limit is not None))

    @property
    def beta(self) -> float:
        replay = self.config.replay
        return replay.beta + (replay.beta_end - replay.beta) * self.share

    @property
    def epsilon_now(self) -> float:
        """The share of random actions, before it is shared out among actors."""
        return self.epsilon.at(self.counters.env_steps / self.config.randomness.steps)

    @property
    def publish_interval_s(self) -> float:
        """Seconds between two versions, at least. Only async may look at a clock."""
        config = self.config
        if config.run.mode is not Mode.ASYNC:
            return 0.0
        least = AFAR_S if config.engine is Engine.RAY else 0.0
        return max(least, config.learner.publish_min_interval_s)

    def published(self) -> dict[str, Array]:
        """What a version consists of: weights, and whom actors may meet."""
        said = {} if self.opponents is None else self.opponents.announcement()
        return self.learner.weights() | said

    def keep(self, traced: Traced | None) -> None:
        """Puts a trace aside for whoever writes it down."""
        if traced is not None:
            self.traced.append(traced)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (self.learner, self.board, self.pool, self.crew, self.member):  # last first
                if part is None:
                    continue
                stack.callback(part.close)


def wire(
    config: Config,
    *,
    factory: Factory | None = None,
    run_dir: Path | None = None,
    weights: dict[str, Array] | None = None,
    incarnations: Sequence[int] = (),
    progress: Sequence[Sequence[Any]] = (),
    approve: Callable[[EnvSpec, Learner], None] | None = None,
) -> Parts:
    """Builds every role.

    `weights` are loaded into all of them (`--init-from`). `incarnations` are those of the actors,
    where a run goes on; `progress` is that of their environments, where it is not with the actors.
    `approve` may refuse what would not fit, before it takes its memory.
    """
    device = pick_device(config.learner.device)
    torch.set_num_threads(config.learner.threads)
    inline = config.engine is Engine.INLINE
    envs = make(config.env, config.actor.envs if inline else 1, factory=factory)
    with contextlib.ExitStack() as stack:  # a run that is refused leaves no environment open
        stack.callback(envs.close)
        spec = envs.spec
        if config.selfplay.on:
            tables_of(envs)  # refused here, and not by an actor of each
        if not inline:
            envs.close()
            _import_meanwhile()
        learner = _learner(config, spec, device, weights)
        if config.run.mode is Mode.DEVICE:
            return _aboard(config, spec, learner, approve)
        spec = written(spec, learner.algorithm)
        if approve is not None:
            approve(spec, learner)
        if isinstance(learner, Lead):
            stack.callback(learner.close)
            learner.recruit(config, envs.spec)
        opponents = _opponents(config, run_dir)
        board, crew, pool, member = _shared(
            config,
            spec,
            learner,
            opponents,
            envs=envs if inline else None,
            factory=factory,
            run_dir=run_dir,
            incarnations=incarnations,
            progress=progress,
        )
        stack.pop_all()  # the first actor closes what it plays
    random = config.randomness
    parts = Parts(
        config=crew.config if config.engine is Engine.RAY else config,
        spec=spec,
        crew=crew,
        learner=learner,
        pool=pool,
        member=member,
        limiter=Epochs(pool) if isinstance(pool, Rollouts) else build_limiter(config),
        board=board,
        epsilon=Schedule(random.first, random.last, random.decay),
        trace=Trace("learner"),
        opponents=opponents,
    )
    if isinstance(member, Member) and config.sharing.guard:
        member.guard = _guard(parts)
    if isinstance(pool, Rollouts) and config.env.normalize_reward:
        pool.scale = lambda: float(learner.deviation())
    if isinstance(learner, Lead):
        _meet(learner, parts)
    return parts


def _meet(learner: Lead, parts: Parts) -> None:
    """Waits for the other learners, who started while everybody else did."""
    with contextlib.ExitStack() as stack:
        stack.callback(parts.close)
        learner.connect()
        stack.pop_all()


def _aboard(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    approve: Callable[[EnvSpec, Learner], None] | None,
) -> Parts:
    """Builds a run that lives on one device; the environment has only shown what it is like.

    A herd has what the driver asks of a crew, and tapes what it asks of a pool; what the other
    loops ask of them, the loop of this mode does not.
    """
    from rookery.loops.arena import choose_precision
    from rookery.loops.herd import Herd, Tapes

    if approve is not None:
        approve(spec, learner)
    choose_precision()
    algorithm, random = learner.algorithm, config.randomness
    assert isinstance(algorithm, Team)
    board = Board(learner.weights())
    board.publish(learner.weights())
    herd = Herd(config, algorithm, World(**config.env.kwargs).rules, learner.device)  # processes
    return Parts(
        config=config,
        spec=written(spec, algorithm),
        crew=cast(Crew, herd),
        learner=learner,
        pool=cast(Pool, Tapes(herd)),
        member=None,
        limiter=build_limiter(config),
        board=board,
        epsilon=Schedule(random.first, random.last, random.decay),
        trace=Trace("learner"),
    )


def _guard(parts: Parts) -> Guard:
    """Weighs loans by the policy as it is when they come."""
    algorithm, rng = parts.learner.algorithm, np.random.default_rng(0)  # greedy: never asked
    return Guard(
        lambda obs: algorithm.act(obs, rng, noise=False).action,
        lambda: parts.epsilon_now,
        choices=parts.spec.action.n,
    )


def _import_meanwhile() -> None:
    """Lets a second pass while actors start, instead of before.

    The first optimizer of a process, and its first step, import torch's compiler to hide from it.
    Nobody here compiles an optimizer, so the first of the two can do without.
    """
    for method in vars(torch.optim.Optimizer).values():
        hidden = getattr(method, "__wrapped__", None)
        if hidden is not None:
            hidden.__dict__.setdefault("__dynamo_disable", hidden)
    threading.Thread(target=import_module, args=("torch._dynamo",), name="import").start()


def _learner(
    config: Config, spec: EnvSpec, device: torch.device, weights: dict[str, Array] | None
) -> Learner:
    algorithm = build_algorithm(config, spec)
    kind = _kind(config)
    learner = kind(algorithm, config.learner, config.env, device, seed=config.run.seed)
    if weights is not None:
        load_arrays(learner.algorithm.acting, weights)
    learner.algorithm.settle(0)
    return learner


def _kind(config: Config) -> type[Learner]:
    if config.run.mode is Mode.DEVICE:
        return Recorded
    return Lead if config.learner.replicas > 1 else Learner


def _opponents(config: Config, run_dir: Path | None) -> OpponentManager | None:
    if not config.selfplay.on:
        return None
    if run_dir is None:
        raise ConfigError(
            "selfplay.opponents keeps snapshots in a run's folder, and this run has none; give it "
            "a run_dir"
        )
    return OpponentManager(config.selfplay, gallery_of(config, run_dir))


def _shared(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    opponents: OpponentManager | None,
    *,
    envs: Envs | None,
    factory: Factory | None,
    run_dir: Path | None,
    incarnations: Sequence[int],
    progress: Sequence[Sequence[Any]],
) -> tuple[Board, "Crew | Fleet", "Pool | Shards | Depot", Blend | None]:
    """Builds what has processes or shared memory. Where one cannot be, those before it go."""
    if config.engine is Engine.RAY:
        return _afar(
            config,
            spec,
            learner,
            factory=factory,
            run_dir=run_dir,
            incarnations=incarnations,
            progress=progress,
        )
    with contextlib.ExitStack() as stack:
        said = {} if opponents is None else opponents.announcement()
        board = Board(learner.weights() | said)
        stack.callback(board.close)
        board.publish(learner.weights() | said)
        crew = Crew(
            config,
            spec,
            board_fd=board.fd,
            gallery=None if opponents is None else opponents.gallery,
            factory=factory,
            envs=envs,
            incarnations=incarnations,
            progress=progress,
            memory=learner.algorithm.memory,
        )
        stack.callback(crew.close)
        member = join(config, spec, run_dir)
        if member is not None:
            stack.callback(member.close)
        pool = _pool(config, spec, crew.rings, run_dir, member, factory)
        stack.pop_all()
    return board, crew, pool, member


def join(config: Config, spec: EnvSpec, run_dir: Path | None) -> Member | None:
    """Takes a run into the pool it is to share with, if there is one."""
    if config.sharing.pool is None:
        return None
    return Member(config, spec, _run_id(config, run_dir))


def _run_id(config: Config, run_dir: Path | None) -> str:
    return run_dir.name if run_dir is not None else f"{config.name}-seed{config.run.seed}"


def _afar(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    *,
    factory: Factory | None,
    run_dir: Path | None,
    incarnations: Sequence[int],
    progress: Sequence[Sequence[Any]],
) -> tuple[Board, "Fleet", "Depot | Pool", Blend | None]:
    """Builds what lives on a cluster."""
    from rookery.loops.depot import Bulletin, Depot
    from rookery.loops.envoy import Envoy
    from rookery.loops.fleet import Fleet, embark
    from rookery.loops.station import Badge

    config, shares = _anywhere(config), config.sharing.pool is not None
    with contextlib.ExitStack() as stack:
        board = Bulletin(learner.weights())
        stack.callback(board.close)
        version = board.publish(learner.weights())
        cluster, config = embark(config, spec, learner.weights())
        stack.callback(cluster.close)
        fleet = Fleet(
            config,
            spec,
            cluster=cluster,
            weights=learner.weights(),
            version=version,
            factory=factory,
            incarnations=incarnations,
            progress=progress,
            badge=Badge(_run_id(config, run_dir), secrets.token_hex(8)) if shares else None,
        )
        board.fleet = fleet
        stack.pop_all()
    seed = config.run.seed
    envoy = Envoy(fleet, seeding.generator(seed, Role.SHARING)) if shares else None
    rng = seeding.generator(seed, Role.REPLAY)
    depot = Depot(fleet, rng)
    return board, fleet, _brought(config, spec, rng, depot), envoy


def _brought(
    config: Config, spec: EnvSpec, rng: np.random.Generator, depot: "Depot"
) -> "Depot | Pool":
    """Rollouts are learned from whole, so they are brought to the learner."""
    if not config.algo.on_policy:
        return depot
    return build_shard(config, spec, [], rng, 1, build=partial(Rollouts, source=depot))


def _anywhere(config: Config) -> Config:
    """Returns the settings with a pool that has the same path on every host."""
    if config.sharing.pool is None:
        return config
    pool = str(Path(config.sharing.pool).absolute())
    return replace(config, sharing=replace(config.sharing, pool=pool))


def _pool(
    config: Config,
    spec: EnvSpec,
    rings: Sequence[Ring],
    run_dir: Path | None,
    member: Member | None,
    factory: Factory | None,
) -> Pool | Shards:
    rng = seeding.generator(config.run.seed, Role.REPLAY)
    count, kind = config.replay.shards or 1, Rollouts if config.algo.on_policy else Pool
    pools = []
    with contextlib.ExitStack() as stack:
        for place in range(count):
            own = Every(rings, place, count)
            pools.append(
                build_shard(
                    config, spec, own, rng, count, run_dir, member, place, factory, build=kind
                )
            )
            stack.callback(pools[-1].close)
        stack.pop_all()
    # goals follow from the places that shards are asked for: one shard is asked as several are
    alone = count == 1 and config.replay.hindsight == 0
    return pools[0] if alone else Shards(pools, rng)


class Every(Sequence[Ring]):
    """The rings of every so many-th actor; whoever replaces an actor replaces its ring here too."""

    def __init__(self, rings: Sequence[Ring], first: int, step: int):
        self._rings, self._first, self._step = rings, first, step

    def __len__(self) -> int:
        return len(range(self._first, len(self._rings), self._step))

    def __getitem__(self, index: Any) -> Any:
        return self._rings[self._first :: self._step][index]

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._rings[self._first :: self._step])


def build_limiter(config: Config) -> Limiter:
    """Allows two chunks of all actors as slack between them and the learner."""
    return Limiter(
        warmup=config.replay.warmup,
        batch=config.replay.batch * config.algo.learned,
        samples_per_insert=config.replay.samples_per_insert,
        slack=2 * config.actor.num * (config.actor.chunk + config.actor.envs),
    )

"""Builds the components of a run (actors, learner, replay, ...) from its settings.

Training loops, benchmarks and tests all use `build_parts`, so that they run the same code.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import torch

from rookery import seeding
from rookery.actors.actor_group import ActorGroup, epsilon_powers
from rookery.actors.device_group import batched_env_of
from rookery.actors.local_group import LocalActors
from rookery.actors.single_actor import SingleActor
from rookery.algorithms import (
    Algorithm,
    build_algorithm,
    outline_algorithm,
    row_spec,
    smaller_network,
)
from rookery.checkpoints.saver import Saver
from rookery.cluster.peers import peers_builder
from rookery.config.schema import Config, Engine, Inference, Mode, refuse_a_league_of_one
from rookery.engines.library_internals import import_compiler_in_background
from rookery.envs.lookup import name_of
from rookery.envs.make import Envs, Factory, make
from rookery.envs.turn_based.opponents import Opponents, opponents_builder, tables_of
from rookery.errors import ConfigError
from rookery.event import Counters, Traced
from rookery.learner.captured_learner import CapturedLearner
from rookery.learner.data_parallel.leader import LeaderLearner
from rookery.learner.learner import Learner
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import load_arrays
from rookery.replay.buffer import LocalReplay
from rookery.replay.build_replay import build_shard
from rookery.replay.limiter import Limiter, build_limiter
from rookery.replay.peers import LocalPeers, ReplayPeers
from rookery.replay.replay import Replay
from rookery.replay.ring import Ring
from rookery.replay.rollouts import RolloutLimiter, Rollouts
from rookery.replay.shards import ShardedReplay
from rookery.report.metrics.policy_lag import Freshness
from rookery.report.metrics.trace import Trace
from rookery.runtime.hang_watch import watched_calls
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, EnvSpec

if TYPE_CHECKING:
    from rookery.cluster.cluster_group import ClusterActors
    from rookery.engines.ray import Cluster

R = TypeVar("R", bound=LocalReplay)
REMOTE_PUBLISH_S = 0.05  # between two versions, at least, where they go to other hosts


@dataclass
class Parts:
    """The components of a run (actors, learner, replay, ...) and its counters.

    Their state is consistent whenever the training loop has yielded an event.
    """

    config: Config
    spec: EnvSpec
    actors: ActorGroup
    learner: Learner
    replay: Replay
    peers: ReplayPeers | None  # other runs whose rows its batches may hold
    limiter: Limiter | RolloutLimiter
    weight_store: WeightStore
    epsilon: Schedule
    trace: Trace
    counters: Counters = field(default_factory=Counters)
    freshness: Freshness = field(default_factory=Freshness)
    opponents: Opponents | None = None  # of a run that plays against its past
    cluster: "Cluster | None" = None  # of a run on the hosts of a cluster
    published_at: float = float("-inf")
    minutes: float = 0.0  # that it has taken so far
    traced: list[Traced] = field(default_factory=list)  # by other processes, not written yet
    # constants of the run, which every step reads
    inline: bool = field(init=False)  # actors run in the learner's process
    steps_per_row: int = field(init=False)  # that a sampled row, or sequence, counts for
    epsilon_steps: int = field(init=False)  # env steps in which epsilon decays
    epsilon_powers: Sequence[float] = field(init=False)  # an actor's epsilon is epsilon ** power
    publish_interval_s: float = field(init=False)  # minimum between two publications of weights

    def __post_init__(self) -> None:
        config = self.config
        self.inline = config.engine is Engine.INLINE
        self.steps_per_row = config.algo.learned
        self.epsilon_steps = config.randomness.steps
        self.epsilon_powers = epsilon_powers(config)
        self.publish_interval_s = _publish_interval_s(config)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (
                self.learner,
                self.weight_store,
                self.replay,
                self.actors,
                self.peers,
            ):  # last first
                if part is None:
                    continue
                stack.callback(part.close)


def _publish_interval_s(config: Config) -> float:
    """Returns the minimum seconds between two publications of weights; 0 except in async mode."""
    if config.run.mode is not Mode.ASYNC:
        return 0.0
    least = REMOTE_PUBLISH_S if config.engine is Engine.RAY else 0.0
    return max(least, config.learner.publish_min_interval_s)


def build_parts(
    config: Config,
    *,
    factory: Factory | None = None,
    run_dir: Path | None = None,
    weights: dict[str, Array] | None = None,
    incarnations: Sequence[int] = (),
    progress: Sequence[Sequence[object]] = (),
    approve: Callable[[EnvSpec, Algorithm], None] | None = None,
    saver: Saver | None = None,
) -> Parts:
    """Builds all components of a run and starts its actors.

    `weights` are the initial weights (`--init-from`). For a resumed run, `incarnations` are the
    actors' restart counts, and `progress` is the state of their environments that outlives
    episodes, such as a curriculum level. `approve` is called before networks and replay are
    allocated, with an algorithm whose weights have no values, and raises an error if the run would
    not fit. With a `saver`, the part of replay on a crashed cluster host is restored from the last
    checkpoint.
    """
    device = pick_device(config.learner.device)
    torch.set_num_threads(config.learner.threads)
    inline = config.engine is Engine.INLINE
    name = config.env.id if factory is None else name_of(factory)
    watched = partial(watched_calls, name, config.actor.env_step_timeout_s)
    with watched() as calls:
        envs = make(config.env, config.actor.envs if inline else 1, factory=factory, calls=calls)
    with contextlib.ExitStack() as stack:  # a run that is refused leaves no environment open
        stack.callback(envs.close)
        spec = envs.spec
        if config.selfplay.on:
            tables_of(envs)  # refused here, and not by each actor
        if approve is not None:
            _ask_for_approval(config, spec, approve)
        if not inline:
            with watched(envs.calls):
                envs.close()
            import_compiler_in_background()
        learner = _learner(config, spec, device, weights)
        if config.run.mode is Mode.DEVICE:
            return _on_device(config, spec, learner)
        spec = row_spec(spec, learner.algorithm)
        if isinstance(learner, LeaderLearner):
            stack.callback(learner.close)
            learner.start_followers(config, envs.spec)
        opponents = _opponents(config, run_dir)
        start = ActorStart(factory, incarnations, progress, envs if inline else None)
        if config.engine is Engine.RAY:
            parts = _on_cluster(config, spec, learner, start, run_dir, saver)
        else:
            parts = _on_host(config, spec, learner, start, run_dir, opponents)
        stack.pop_all()  # the first actor closes what it plays
    if isinstance(learner, LeaderLearner):
        _meet(learner, parts)
    return parts


def _ask_for_approval(
    config: Config, spec: EnvSpec, approve: Callable[[EnvSpec, Algorithm], None]
) -> None:
    """Calls `approve` before memory is allocated, if the algorithm can be built without values."""
    algorithm = outline_algorithm(config, spec) or build_algorithm(config, spec)
    approve(row_spec(spec, algorithm), algorithm)


class ActorStart(NamedTuple):
    """Arguments with which the actors of a run are started."""

    factory: Factory | None
    incarnations: Sequence[int]
    progress: Sequence[Sequence[object]]
    envs: Envs | None = None  # made already, for the first actor of this process


def _meet(learner: LeaderLearner, parts: Parts) -> None:
    """Connects this learner with the other data-parallel learners; waits until all have joined."""
    with contextlib.ExitStack() as stack:
        stack.callback(parts.close)
        learner.connect()
        stack.pop_all()


def _parts(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    *,
    actors: ActorGroup,
    replay: Replay,
    limiter: Limiter | RolloutLimiter,
    weight_store: WeightStore,
    peers: ReplayPeers | None = None,
    opponents: Opponents | None = None,
    cluster: "Cluster | None" = None,
) -> Parts:
    random = config.randomness
    return Parts(
        config=config,
        spec=spec,
        actors=actors,
        learner=learner,
        replay=replay,
        peers=peers,
        limiter=limiter,
        weight_store=weight_store,
        epsilon=Schedule(random.first, random.last, random.decay),
        trace=Trace("learner"),
        opponents=opponents,
        cluster=cluster,
    )


def _on_device(config: Config, spec: EnvSpec, learner: Learner) -> Parts:
    """Builds the components of a run in device mode: all on one device."""
    weight_store = WeightStore(learner.weights())
    version = weight_store.publish(learner.weights())
    built = batched_env_of(config).build(config, learner.algorithm, learner.device)  # processes
    built.replay.version = version
    return _parts(
        config,
        row_spec(spec, learner.algorithm),
        learner,
        actors=built.actors,
        replay=built.replay,
        limiter=build_limiter(config, sampleable=lambda: built.replay.ready),
        weight_store=weight_store,
    )


def _learner(
    config: Config, spec: EnvSpec, device: torch.device, weights: dict[str, Array] | None
) -> Learner:
    algorithm = build_algorithm(config, spec)
    kind = _kind(config)
    try:
        learner = kind(algorithm, config.learner, config.env, device, seed=config.run.seed)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{device} has too little memory for the networks ({error}); "
            f"{smaller_network(config.net)}, or set learner.device=cpu"
        ) from error
    if weights is not None:
        load_arrays(learner.algorithm.acting, weights)
    learner.algorithm.update_targets(0)
    return learner


def _kind(config: Config) -> type[Learner]:
    if config.run.mode is Mode.DEVICE:
        return CapturedLearner
    return LeaderLearner if config.learner.replicas > 1 else Learner


def _opponents(config: Config, run_dir: Path | None) -> Opponents | None:
    if (builder := opponents_builder(config)) is None:
        return None
    if run_dir is None:
        raise ConfigError(
            "selfplay.opponents keeps snapshots in a run's folder, and this run has none; give it "
            "a run_dir"
        )
    refuse_a_league_of_one(config)
    return builder.opponents(config, run_dir)


def _on_host(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    start: ActorStart,
    run_dir: Path | None,
    opponents: Opponents | None,
) -> Parts:
    """Builds the components of a run whose actors and replay are on this host."""
    with contextlib.ExitStack() as stack:
        announced = {} if opponents is None else opponents.announcement()
        weight_store = WeightStore(learner.weights() | announced)
        stack.callback(weight_store.close)
        weight_store.publish(learner.weights() | announced)
        actors = _actors(config, spec, learner, start, weight_store.fd, opponents)
        stack.callback(actors.close)
        peers = join(config, spec, run_dir)
        if peers is not None:
            stack.callback(peers.close)
        replay, limiter = _replay(config, spec, learner, actors.rings, run_dir, peers, start)
        stack.callback(replay.close)
        parts = _parts(
            config,
            spec,
            learner,
            actors=actors,
            replay=replay,
            limiter=limiter,
            weight_store=weight_store,
            peers=peers,
            opponents=opponents,
        )
        stack.pop_all()
    return parts


def _actors(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    start: ActorStart,
    weights_fd: int,
    opponents: Opponents | None,
) -> SingleActor | LocalActors:
    seats = None if opponents is None else opponents.for_actors
    if config.run.mode is Mode.SINGLE and config.actor.inference is Inference.LOCAL:
        return SingleActor(
            config,
            spec,
            weights_fd=weights_fd,
            opponents=seats,
            factory=start.factory,
            envs=start.envs,
            incarnation=start.incarnations[0] if start.incarnations else 0,
            progress=start.progress,
        )
    return LocalActors(
        config,
        spec,
        weights_fd=weights_fd,
        opponents=seats,
        factory=start.factory,
        envs=start.envs,
        incarnations=start.incarnations,
        progress=start.progress,
        memory=learner.algorithm.memory,
    )


def join(config: Config, spec: EnvSpec, run_dir: Path | None) -> LocalPeers | None:
    """Returns a run's access to other runs' replay buffers; None without `sharing.pool`."""
    if config.sharing.pool is None:
        return None
    return peers_builder(config).local(config, spec, _run_id(config, run_dir))


def _run_id(config: Config, run_dir: Path | None) -> str:
    return run_dir.name if run_dir is not None else f"{config.name}-seed{config.run.seed}"


def _on_cluster(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    start: ActorStart,
    run_dir: Path | None,
    saver: Saver | None,
) -> Parts:
    """Builds the components of a run whose actors and replay are on the hosts of a cluster."""
    from rookery.cluster.remote_replay import ClusterWeightStore, RemoteReplay

    config, shares = _anywhere(config), config.sharing.pool is not None
    with contextlib.ExitStack() as stack:
        weight_store = ClusterWeightStore(learner.weights())
        stack.callback(weight_store.close)
        version = weight_store.publish(learner.weights())
        actors = _cluster_actors(config, spec, learner, version, start, run_dir, saver)
        stack.callback(actors.close)
        weight_store.group, config = actors, actors.config
        seed = config.run.seed
        rng_of_peers = seeding.generator(seed, Role.SHARING)
        peers = peers_builder(config).on_cluster(actors, rng_of_peers) if shares else None
        if peers is not None:
            stack.callback(peers.close)
        rng = seeding.generator(seed, Role.REPLAY)
        remote = RemoteReplay(actors, rng)
        replay: Replay = remote
        limiter: Limiter | RolloutLimiter = build_limiter(config, actors=lambda: actors.count)
        if config.algo.on_policy:  # rollouts are learned from whole: their rows come to the learner
            rollouts = build_shard(config, spec, [], rng, 1, partial(Rollouts, source=remote))
            stack.callback(rollouts.close)
            replay, limiter = _rollouts(config, rollouts, learner)
        parts = _parts(
            config,
            spec,
            learner,
            actors=actors,
            replay=replay,
            limiter=limiter,
            weight_store=weight_store,
            peers=peers,
            cluster=actors.cluster,
        )
        stack.pop_all()
    return parts


def _cluster_actors(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    version: int,
    start: ActorStart,
    run_dir: Path | None,
    saver: Saver | None,
) -> "ClusterActors":
    """Starts or joins a run's Ray cluster, and starts the host workers; `close` ends both."""
    from rookery.cluster.cluster_group import ClusterActors, embark
    from rookery.cluster.messages import PoolIdentity
    from rookery.cluster.shard_recovery import recall_of

    identity = None
    if config.sharing.pool is not None:
        identity = PoolIdentity(_run_id(config, run_dir), secrets.token_hex(8))
    cluster, config = embark(config, spec, learner.weights())
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        actors = ClusterActors(
            config,
            spec,
            cluster=cluster,
            weights=learner.weights(),
            version=version,
            factory=start.factory,
            incarnations=start.incarnations,
            progress=start.progress,
            identity=identity,
            recall=recall_of(config, saver),
        )
        stack.pop_all()
    return actors


def _anywhere(config: Config) -> Config:
    """Returns the settings with the folder `sharing.pool` as an absolute path, for other hosts."""
    if config.sharing.pool is None:
        return config
    pool = str(Path(config.sharing.pool).absolute())
    return replace(config, sharing=replace(config.sharing, pool=pool))


def _replay(
    config: Config,
    spec: EnvSpec,
    learner: Learner,
    rings: Sequence[Ring],
    run_dir: Path | None,
    peers: LocalPeers | None,
    start: ActorStart,
) -> tuple[Replay, Limiter | RolloutLimiter]:
    """Builds a run's replay on this host, and its rate limiter (samples per insert)."""
    rng = seeding.generator(config.run.seed, Role.REPLAY)
    count = config.replay.shards or 1

    def shard(  # type: ignore[explicit-any]  # a constructor of many arguments
        place: int, build: Callable[..., R]
    ) -> R:
        own = rings if count == 1 else Every(rings, place, count)
        return build_shard(
            config, spec, own, rng, count, build, run_dir, peers, place, start.factory
        )

    if config.algo.on_policy:
        return _rollouts(config, shard(0, Rollouts), learner)
    shards: list[LocalReplay] = []
    with contextlib.ExitStack() as stack:
        for place in range(count):
            shards.append(shard(place, LocalReplay))
            stack.callback(shards[-1].close)
        stack.pop_all()
    # hindsight goals follow from the places that shards are asked for, however many there are
    alone = count == 1 and config.replay.hindsight == 0
    return shards[0] if alone else ShardedReplay(shards, rng), build_limiter(config)


def _rollouts(
    config: Config, rollouts: Rollouts, learner: Learner
) -> tuple[Replay, RolloutLimiter]:
    if config.env.normalize_reward:
        rollouts.scale = lambda: float(learner.deviation())
    return rollouts, RolloutLimiter(rollouts)


class Every(Sequence[Ring]):
    """View of every `step`-th ring buffer of `rings`, from `first` on.

    An actor writes its env steps into its own ring buffer in shared memory. If replay is divided
    into several shards (parts), each shard reads the ring buffers of one such view. The view also
    shows the new ring buffer of a restarted actor.
    """

    def __init__(self, rings: Sequence[Ring], first: int, step: int):
        self._rings, self._first, self._step = rings, first, step

    def __len__(self) -> int:
        return len(range(self._first, len(self._rings), self._step))

    @overload
    def __getitem__(self, index: int) -> Ring: ...
    @overload
    def __getitem__(self, index: "slice[int | None, int | None, int | None]") -> Sequence[Ring]: ...
    def __getitem__(
        self, index: "int | slice[int | None, int | None, int | None]"
    ) -> Ring | Sequence[Ring]:
        return self._rings[self._first :: self._step][index]

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._rings[self._first :: self._step])

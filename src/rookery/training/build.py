"""Builds the components of a run (actors, learner, replay, ...) from its settings.

Training loops, benchmarks and tests all use `build_parts`, so that they run the same code.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from rookery import seeding
from rookery.actors.actor_group import ActorGroup, ActorGroupState, epsilon_powers
from rookery.actors.device_group import batched_env_of
from rookery.actors.local_group import LocalActors
from rookery.actors.messages import ActorGroupSetup
from rookery.actors.worker import SingleActor
from rookery.algorithms import (
    Algorithm,
    build_algorithm,
    outline_algorithm,
    row_spec,
    smaller_network,
)
from rookery.checkpoints.saver import Saver
from rookery.cluster.peers import peers_builder
from rookery.config.schema import (
    Capture,
    Config,
    Draw,
    Engine,
    Inference,
    Mode,
    refuse_a_league_of_one,
)
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
from rookery.replay.buffer import LocalReplay, build_shard
from rookery.replay.limiter import Limiter, build_limiter
from rookery.replay.replay import LocalPeers, Replay, ReplayPeers
from rookery.replay.ring import Ring
from rookery.replay.rollouts import RolloutLimiter, Rollouts
from rookery.replay.shards import ShardedReplay
from rookery.report.metrics.policy_lag import Freshness
from rookery.report.metrics.trace import Trace
from rookery.runtime.watchdog import watched_calls
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array, EnvSpec

if TYPE_CHECKING:
    from rookery.cluster.cluster_group import ClusterActors
    from rookery.engines.ray import Cluster

NEW_ACTORS = ActorGroupState(incarnations=())
R = TypeVar("R", bound=LocalReplay)
AnyLimiter: TypeAlias = Limiter | RolloutLimiter


@dataclass
class Parts:
    """The components of a run (actors, learner, replay, ...) and its counters.

    Their state is consistent whenever the training loop has yielded an event.
    """

    config: Config
    spec: EnvSpec
    learner: Learner
    actors: ActorGroup
    replay: Replay
    limiter: AnyLimiter
    weight_store: WeightStore
    peers: ReplayPeers | None = None  # other runs whose rows its batches may hold
    opponents: Opponents | None = None  # of a run that plays against its past
    cluster: "Cluster | None" = None  # of a run on the hosts of a cluster
    # constants of the run, which every step reads
    inline: bool = field(init=False)  # actors run in the learner's process
    epsilon: Schedule = field(init=False)  # of exploration
    epsilon_steps: int = field(init=False)  # env steps in which epsilon decays
    epsilon_powers: Sequence[float] = field(init=False)  # an actor's epsilon is epsilon ** power
    steps_per_row: int = field(init=False)  # that a sampled row, or sequence, counts for
    trace: Trace = field(default_factory=lambda: Trace("learner"))
    counters: Counters = field(default_factory=Counters)
    freshness: Freshness = field(default_factory=Freshness)
    published_at: float = float("-inf")
    minutes: float = 0.0  # that it has taken so far
    traced: list[Traced] = field(default_factory=list)  # by other processes, not written yet

    def __post_init__(self) -> None:
        random = self.config.randomness
        self.inline = self.config.engine is Engine.INLINE
        self.epsilon = Schedule(random.first, random.last, random.decay)
        self.epsilon_steps, self.epsilon_powers = random.steps, epsilon_powers(self.config)
        self.steps_per_row = self.config.algo.learned

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # the last one is closed first
            for part in (self.learner, self.weight_store, self.replay, self.actors, self.peers):
                if part is not None:
                    stack.callback(part.close)


def build_parts(
    config: Config,
    *,
    factory: Factory | None = None,
    run_dir: Path | None = None,
    weights: dict[str, Array] | None = None,
    saved: ActorGroupState = NEW_ACTORS,
    approve: Callable[[EnvSpec, Algorithm], None] | None = None,
    saver: Saver | None = None,
) -> Parts:
    """Builds all components of a run and starts its actors.

    `weights` are the initial weights (`--init-from`). Of `saved`, the actors' state in a
    checkpoint, only the restart counts and the progress of the environments are used. `approve` is
    called before networks and replay are allocated, with an algorithm whose weights have no values,
    and raises an error if the run would not fit. With a `saver`, the part of replay on a crashed
    cluster host is restored from the last checkpoint.
    """
    device = pick_device(config.learner.device)
    torch.set_num_threads(config.learner.threads)
    inline = config.engine is Engine.INLINE
    name = config.env.id if factory is None else name_of(factory)
    watched = partial(watched_calls, name, config.actor.env_step_timeout_s)
    with watched() as calls:
        envs = make(config.env, config.actor.envs if inline else 1, factory=factory, calls=calls)
    with contextlib.ExitStack() as stack:  # closes what is built, unless all of it is
        stack.callback(envs.close)
        if config.selfplay.on:
            tables_of(envs)  # refused here, and not by each actor
        if approve is not None:
            algorithm = outline_algorithm(config, envs.spec) or build_algorithm(config, envs.spec)
            approve(row_spec(envs.spec, algorithm), algorithm)
        if not inline:
            with watched(envs.calls):
                envs.close()
            import_compiler_in_background()
        learner = stack.enter_context(closing(_learner(config, envs.spec, device, weights)))
        spec, own_envs = row_spec(envs.spec, learner.algorithm), envs if inline else None
        builder = PartsBuilder(
            config, spec, learner, run_dir, factory, own_envs, saved, saver, stack
        )
        if isinstance(learner, LeaderLearner):
            learner.start_followers(config, envs.spec)
        parts = builder.build()
        if isinstance(learner, LeaderLearner):
            learner.connect()
        stack.pop_all()  # the first actor closes what it plays
    return parts


def _learner(
    config: Config, spec: EnvSpec, device: torch.device, weights: dict[str, Array] | None
) -> Learner:
    algorithm = build_algorithm(config, spec)
    kind = _kind(config, algorithm, device)
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
    learner.prioritized = config.replay.sampling is Draw.PRIORITIZED
    return learner


def _kind(config: Config, algorithm: Algorithm, device: torch.device) -> type[Learner]:
    if config.run.mode is Mode.DEVICE or _captures(config, algorithm, device):
        return CapturedLearner
    return LeaderLearner if config.learner.replicas > 1 else Learner


def _captures(config: Config, algorithm: Algorithm, device: torch.device) -> bool:
    """Returns whether gradient steps are captured; raises ConfigError if they are to be and cannot.

    Losses and networks of users may wait for values, which cannot be captured; they are captured
    only with `learner.capture` on.
    """
    capture, one = config.learner.capture, config.learner.replicas == 1
    can = algorithm.capturable and device.type == "cuda" and one
    if capture is Capture.ON and not can:
        raise ConfigError(
            f"learner.capture is on, but {config.algo.name} on {device} with learner.replicas "
            f"{config.learner.replicas} cannot be captured; use one learner, a GPU, and dqn, sac, "
            "tqc, td3 or ddpg, or leave learner.capture out"
        )
    own = type(algorithm).__module__.startswith("rookery.") and config.net.custom is None
    return can and (capture is Capture.ON or (capture is Capture.AUTO and own))


@dataclass
class PartsBuilder:
    """Builds actors, replay and weight store of a run around its learner.

    `stack` gets what is built, to close it if a later component cannot be built.
    """

    config: Config
    spec: EnvSpec
    learner: Learner
    run_dir: Path | None
    factory: Factory | None
    envs: Envs | None  # made already, for the first actor of this process
    saved: ActorGroupState
    saver: Saver | None
    stack: contextlib.ExitStack

    def build(self) -> Parts:
        if self.config.run.mode is Mode.DEVICE:
            return self._on_device()
        return self._on_cluster() if self.config.engine is Engine.RAY else self._on_host()

    def _on_device(self) -> Parts:
        """Builds the components of a run in device mode: all on one device."""
        weight_store = WeightStore(self.learner.weights())
        version = weight_store.publish(self.learner.weights())
        config, algorithm, device = self.config, self.learner.algorithm, self.learner.device
        actors, replay = batched_env_of(config).build(config, algorithm, device)
        replay.version = version
        limiter = build_limiter(config, sampleable=lambda: replay.ready)
        return Parts(config, self.spec, self.learner, actors, replay, limiter, weight_store)

    def _on_host(self) -> Parts:
        """Builds the components of a run whose actors and replay are on this host."""
        opponents = self._opponents()
        weights = self.learner.weights()
        if opponents is not None:
            weights = weights | opponents.announcement()
        weight_store = self.stack.enter_context(closing(WeightStore(weights)))
        weight_store.publish(weights)
        actors = self.stack.enter_context(closing(self._actors(weight_store.fd, opponents)))
        peers = self._peers()
        replay, limiter = self._replay(actors.rings, peers)
        config, spec, learner = self.config, self.spec, self.learner
        return Parts(config, spec, learner, actors, replay, limiter, weight_store, peers, opponents)

    def _opponents(self) -> Opponents | None:
        if (builder := opponents_builder(self.config)) is None:
            return None
        if self.run_dir is None:
            raise ConfigError(
                "selfplay.opponents keeps snapshots in a run's folder, and this run has none; give "
                "it a run_dir"
            )
        refuse_a_league_of_one(self.config)
        return builder.opponents(self.config, self.run_dir)

    def _actors(self, weights_fd: int, opponents: Opponents | None) -> SingleActor | LocalActors:
        config, saved, memory = self.config, self.saved, self.learner.algorithm.memory
        setup = ActorGroupSetup(config, self.spec, weights_fd, self.factory, self.envs)
        setup = setup._replace(incarnations=saved.incarnations, progress=saved.progress)
        for_actors = None if opponents is None else opponents.for_actors
        setup = setup._replace(memory=memory, opponents=for_actors)
        called = config.run.mode is Mode.SINGLE and config.actor.inference is Inference.LOCAL
        return SingleActor(setup) if called else LocalActors(setup)

    @property
    def _run_id(self) -> str:
        run = self.config.run
        return self.run_dir.name if self.run_dir else f"{self.config.name}-seed{run.seed}"

    def _peers(self) -> LocalPeers | None:
        """Returns a run's access to other runs' replay buffers; None without `sharing.pool`."""
        if self.config.sharing.pool is None:
            return None
        peers = peers_builder(self.config).local(self.config, self.spec, self._run_id)
        return self.stack.enter_context(closing(peers))

    def _replay(self, rings: Sequence[Ring], peers: LocalPeers | None) -> tuple[Replay, AnyLimiter]:
        """Builds a run's replay on this host, and its rate limiter (samples per insert)."""
        config = self.config
        rng = seeding.generator(config.run.seed, Role.REPLAY)
        count = config.replay.shards or 1

        def shard(place: int, build: type[R]) -> R:
            own, run_dir = rings if count == 1 else EveryNth(rings, place, count), self.run_dir
            made = build_shard(
                config, self.spec, own, rng, count, build, run_dir, peers, place, self.factory
            )
            return self.stack.enter_context(closing(made))

        if config.algo.on_policy:
            return self._rollouts(shard(0, Rollouts))
        shards = [shard(place, LocalReplay) for place in range(count)]
        # hindsight goals follow from the places that shards are asked for, however many there are
        alone = count == 1 and config.replay.hindsight == 0
        return shards[0] if alone else ShardedReplay(shards, rng), build_limiter(config)

    def _rollouts(self, rollouts: Rollouts) -> tuple[Replay, AnyLimiter]:
        if self.config.env.normalize_reward:
            rollouts.scale = self.learner.normalized
        return rollouts, RolloutLimiter(rollouts)

    def _on_cluster(self) -> Parts:
        """Builds the components of a run whose actors and replay are on the hosts of a cluster."""
        from rookery.cluster.remote_replay import ClusterWeightStore, RemoteReplay

        weight_store = ClusterWeightStore(self.learner.weights())
        self.stack.callback(weight_store.close)
        version = weight_store.publish(self.learner.weights())
        actors = self.stack.enter_context(closing(self._cluster_actors(version)))
        weight_store.group, config = actors, actors.config
        seed, peers = config.run.seed, None
        if config.sharing.pool is not None:
            rng = seeding.generator(seed, Role.SHARING)
            peers = peers_builder(config).on_cluster(actors, rng)
            self.stack.callback(peers.close)
        rng = seeding.generator(seed, Role.REPLAY)
        remote = RemoteReplay(actors, rng)
        replay: Replay = remote
        limiter: AnyLimiter = build_limiter(config, actors=lambda: actors.count)
        if config.algo.on_policy:  # rollouts are learned from whole: their rows come to the learner
            rollouts = build_shard(config, self.spec, [], rng, 1, Rollouts)
            self.stack.callback(rollouts.close)
            rollouts.source = remote
            replay, limiter = self._rollouts(rollouts)
        learner, cluster = self.learner, actors.cluster
        return Parts(
            config, self.spec, learner, actors, replay, limiter, weight_store, peers, None, cluster
        )

    def _cluster_actors(self, version: int) -> "ClusterActors":
        """Starts or joins a run's Ray cluster, and starts the host workers; `close` ends both."""
        from rookery.cluster.cluster_group import ClusterActors, embark
        from rookery.cluster.messages import HostSetup, PoolIdentity
        from rookery.cluster.remote_replay import recall_of

        weights, identity, config = self.learner.weights(), None, self.config
        if (pool := config.sharing.pool) is not None:  # of which other hosts need the whole path
            sharing = replace(config.sharing, pool=str(Path(pool).absolute()))
            config = replace(config, sharing=sharing)
            identity = PoolIdentity(self._run_id, secrets.token_hex(8))
        cluster, config = embark(config, self.spec, weights)
        with contextlib.ExitStack() as stack:
            stack.callback(cluster.close)
            setup = HostSetup(config, self.spec, self.factory, version, weights, identity)
            recall = recall_of(config, self.saver)
            actors = ClusterActors(setup, cluster=cluster, saved=self.saved, recall=recall)
            stack.pop_all()
        return actors


class EveryNth(Iterable[Ring]):
    """View of every n-th ring buffer of `rings`, from `first` on.

    An actor writes its env steps into its own ring buffer in shared memory. If replay is divided
    into several shards (parts), each shard reads the ring buffers of one such view. The view also
    shows the new ring buffer of a restarted actor.
    """

    def __init__(self, rings: Sequence[Ring], first: int, n: int):
        self._rings, self._first, self._n = rings, first, n

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._rings[self._first :: self._n])

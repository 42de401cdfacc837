"""Training on several machines: actors on the hosts of a Ray cluster, one parameter server.

The loop is the async loop of `rookery train --engine ray` (docs/cluster.md): hosts play and keep
replay, gradients are computed here. The server takes the steps; several such loops, each with its
own `node_id`, may share one that is served over the network. Without an address a Ray of its own is
started on this machine, and ended with the run.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any, cast

from rookery.actors.actor_group import epsilons_of
from rookery.actors.policy import Recipe, checked, recipe
from rookery.components.environment import ENDLESS, limited
from rookery.components.main_loop import MainLoop, leave, settled
from rookery.config.schema import ClusterConfig, Config, Draw, Engine, Mode
from rookery.errors import ConfigError
from rookery.event import Collected, Event
from rookery.learner.gradients import GradientLearner
from rookery.learner.learner import Learner
from rookery.runtime.signals import Interrupts
from rookery.training.asynchronous import async_actors, asynchronous
from rookery.training.build import Parts, build_parts
from rookery.training.steps import epsilon_now, publish
from rookery.types import Array, LearnResult, SampledBatch

LOCAL = "local"  # an address that is none: a Ray of its own
LOOK_S = 0.05  # between two looks while it is paused


class ServerSteppedLearner:
    """What the async loop takes for its learner: gradients here, steps by the server."""

    def __init__(self, loop: "DistributedMainLoop", learner: GradientLearner):
        self._loop, self._learner = loop, learner
        self.algorithm = learner.algorithm

    def learn(self, batch: SampledBatch) -> LearnResult:
        agent: Any = self._loop.agent
        gradients = agent.compute_gradients(batch)
        if not gradients:
            return LearnResult(None, {})
        self._loop.hand_over(gradients)
        return LearnResult(agent.td_error, {"gradients": self._loop.gradients})

    @property
    def learner_steps(self) -> int:
        return self._learner.learner_steps

    def due(self) -> bool:
        return self._learner.due()

    def weights(self) -> dict[str, Array]:
        return self._learner.weights()

    def adopt_statistics(self) -> None:
        self._learner.adopt_statistics()

    def advance(self, share: float) -> None:
        """Learning rates are the server's."""

    def close(self) -> None:
        """Nothing learns elsewhere."""


class DistributedMainLoop(MainLoop):
    """A `MainLoop` whose environments are played on a cluster.

    config = {"address": "10.0.0.1:6379", "token_path": "~/.rookery/token", "actors_per_node": 4}
    loop = DistributedMainLoop(
        environment, replay_buffer, agent, param_server, node_id="worker_1", cluster_config=config
    )
    loop.run_distributed_training(1000); loop.synchronize_with_cluster()

    `cluster_config` is a mapping or a dataclass with `address` (HOST:PORT, auto, or local),
    `token_path`, `learner_resources` (what this host must have), `actors_per_node`, and the other
    settings of `cluster` in a run's config. The environment has an `env_factory` and `num_workers`,
    which are the actors where `actors_per_node` says nothing; the buffer has a `capacity`, which
    the hosts share; the agent is one of ours, or has its `recipe`, `learner` and methods.
    """

    @checked
    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        node_id: str = "node_0",
        cluster_config: Any = None,
        config: Any = None,
    ):
        super().__init__(environment, replay_buffer, agent, parameter_server, config)
        self.config = replace(self.config, worker=node_id)
        self.node_id, self.cluster = node_id, _cluster(cluster_config)
        _refuse_strangers(environment, agent)
        self._parts: Parts | None = None
        self._counted = 0  # env steps that this run's events have told of

    @checked
    def run_distributed_training(
        self,
        total_episodes: int = 1000,
        max_steps: int = 1000,
        evaluation_frequency: int = 0,
        checkpoint_frequency: int = 0,
    ) -> dict[str, Any]:
        """Trains until all actors together have played so many episodes; returns the progress.

        Evaluates and saves every so many episodes; 0 is never.
        """
        began, before = self._begin(), self._seconds
        with Interrupts() as interrupts:
            self._join()
            with self._embarked(max_steps) as parts:
                interrupts.begin()
                for event in asynchronous(parts):
                    last = self.episode
                    self._note(event)
                    self._seconds = before + time.monotonic() - began
                    if isinstance(event, Collected):
                        self._look(last, self.episode, evaluation_frequency, checkpoint_frequency)
                    self._rest(parts, interrupts)
                    if (reason := self._why(interrupts, total_episodes)) is not None:
                        break
            self._reason = reason
            if interrupts.reason is not None or checkpoint_frequency:
                self._save_by_itself()
        leave(interrupts)
        return self.get_training_progress()

    @checked
    def synchronize_with_cluster(self) -> int:
        """Takes the server's newest parameters over, and shows them to the actors, if any play.

        Returns their version.
        """
        self.parameter_server.register_worker(self.node_id)
        version = self._pull()
        if self._parts is not None:
            publish(self._parts)
        return version

    @checked
    def get_training_progress(self) -> dict[str, Any]:
        """As in `MainLoop`, with this node's name and the actors that play."""
        parts = self._parts
        return {
            **super().get_training_progress(),
            "node_id": self.node_id,
            "actors": 0 if parts is None else parts.config.actor.num,
        }

    def _note(self, event: Event) -> None:
        if isinstance(event, Collected):
            self.env_steps += event.counters.env_steps - self._counted
            self._counted = event.counters.env_steps
            self.episode += len(event.ended)
            self._returns.extend(episode.score for episode in event.ended)

    def _begin(self) -> float:
        self._stopped.clear()
        self._reason, self._counted = None, 0
        return time.monotonic()

    def _rest(self, parts: Parts, interrupts: Interrupts) -> None:
        """Where it is paused: hosts are listened to, and nobody plays."""
        actors = async_actors(parts)
        while not self._running.is_set() and interrupts.reason is None:
            actors.allow(False, epsilons_of(epsilon_now(parts), parts.config), 0)
            actors.reports()
            self._running.wait(LOOK_S)

    @contextlib.contextmanager
    def _embarked(self, max_steps: int) -> Iterator[Parts]:
        """Brings the actors up; nothing of them is left afterwards."""
        made_from = self._recipe(max_steps)
        parts = build_parts(made_from.config, factory=made_from.factory)
        try:
            self._refuse_another_host(parts)
            agent: Any = self.agent
            parts.learner.close()
            parts.learner = cast(Learner, ServerSteppedLearner(self, agent.learner))
            publish(parts)
            self._parts = parts
            yield parts
        finally:
            self._parts = None
            parts.close()

    def _recipe(self, max_steps: int) -> Recipe:
        """Returns what the run on the cluster is made from."""
        agent: Any = self.agent
        environment: Any = self.environment
        made_from = recipe(environment.env_factory, getattr(environment, "settings", {}))
        config: Config = agent.recipe.config
        ranked = getattr(self.replay_buffer, "use_prioritized", False)
        capacity = int(getattr(self.replay_buffer, "capacity", config.replay.capacity))
        return Recipe(
            replace(
                config,
                run=replace(config.run, mode=Mode.ASYNC, engine=Engine.RAY, env_steps=ENDLESS),
                env=limited(replace(made_from.config.env, check=False), max_steps),
                actor=replace(config.actor, num=int(getattr(environment, "num_workers", 1))),
                replay=replace(
                    config.replay,
                    capacity=max(capacity, config.replay.learning_starts),
                    sampling=Draw.PRIORITIZED if ranked else Draw.UNIFORM,
                ),
                cluster=self.cluster,
            ),
            made_from.factory,
        )

    def _refuse_another_host(self, parts: Parts) -> None:
        wanted = self.cluster.learner_resources
        if not wanted:
            return
        here = socket.gethostname()
        nodes = parts.cluster.nodes() if parts.cluster is not None else []
        found = [node.resources for node in nodes if node.name == here]
        if not any(all(r.get(k, 0.0) >= v for k, v in wanted.items()) for r in found):
            raise ConfigError(
                f"cluster_config wants learner_resources {dict(wanted)}, and {here}, where this "
                f"loop learns, has {found or 'no Ray'}; start it on a host that has them"
            )


def _cluster(given: Any) -> ClusterConfig:
    if isinstance(given, ClusterConfig) or given is None:
        return given or ClusterConfig()
    fields: Any = given
    if is_dataclass(given) and not isinstance(given, type):
        fields = asdict(given)
    if isinstance(fields, Mapping) and fields.get("address") == LOCAL:
        fields = {**fields, "address": None}
    return settled(ClusterConfig, fields)


def _refuse_strangers(environment: Any, agent: Any) -> None:
    needed = {"env_factory": environment, "recipe": agent, "learner": agent}
    for name, part in needed.items():
        if not hasattr(part, name):
            raise ConfigError(
                f"actors on other hosts are built from the environment's env_factory and the "
                f"agent's recipe and learner, got a {type(part).__name__} without {name}; add it, "
                "or use MainLoop"
            )

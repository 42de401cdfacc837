"""Training on several machines: actors on the hosts of a Ray cluster, one parameter server.

The loop is the async loop of `rookery train --engine ray` (docs/cluster.md): hosts play and keep
replay, gradients are computed here. The server takes the steps; several such loops, each with its
own `node_id`, may share one that is served over the network. Without an address a Ray of its own is
started on this machine, and ended with the run.
"""

import socket
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from rookery.actors.policy import Recipe
from rookery.components.environment import ENDLESS
from rookery.components.loop_parts import LoopPlan, ServerLearner, capacity, played_elsewhere
from rookery.components.main_loop import LoopConfig, MainLoop
from rookery.components.protocols import checked_methods
from rookery.config.checks import Count
from rookery.config.load import load
from rookery.config.schema import ClusterConfig, Draw, Engine, Mode
from rookery.errors import ConfigError
from rookery.training.build import Parts, build_parts
from rookery.training.steps import publish

LOCAL = "local"  # an address that is none: a Ray of its own


@checked_methods
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

    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        node_id: str = "node_0",
        cluster_config: Any = None,
        config: LoopConfig | Mapping[str, Any] | None = None,
    ):
        super().__init__(environment, replay_buffer, agent, parameter_server, config)
        self.config = replace(self.config, worker=node_id)
        self.node_id, self.cluster = node_id, _cluster(cluster_config)
        _refuse_unbuildable(environment, agent)

    def run_distributed_training(
        self, total_episodes: Count = 1000, max_steps: Count = 1000, **options: int
    ) -> dict[str, Any]:
        """The same as `run_training`: trains until all actors together have played the episodes.

        Options are `evaluation_frequency` and `checkpoint_frequency`.
        """
        return self.run_training(total_episodes, max_steps, **options)

    def synchronize_with_cluster(self) -> int:
        """Takes the server's newest parameters over, and publishes them to the actors, if any play.

        Returns their version.
        """
        self.parameter_server.register_worker(self.node_id)
        version = self.pull()
        if self.parts is not None:
            publish(self.parts)
        return version

    def get_training_progress(self) -> dict[str, Any]:
        """As in `MainLoop`, with this node's name and the actors that play."""
        parts = self.parts
        return {
            **super().get_training_progress(),
            "node_id": self.node_id,
            "actors": 0 if parts is None else parts.config.actor.num,
        }

    def build(self, plan: LoopPlan) -> Parts:
        """Starts the actors on the hosts; their weights are those that the server has made."""
        made_from = self._recipe(plan)
        parts = build_parts(made_from.config, factory=made_from.factory)
        try:
            self._refuse_another_host(parts)
            agent: Any = self.agent
            parts.learner.close()
            learner: Any = ServerLearner(self, agent.learner)
            parts.learner = learner
            parts.counters = self.counters
            publish(parts)
        except BaseException:  # the hosts must be left
            parts.close()
            raise
        return parts

    def _recipe(self, plan: LoopPlan) -> Recipe:
        """Returns what the run on the cluster is made from."""
        made_from, config = played_elsewhere(self, plan), self.agent.recipe.config  # type: ignore[attr-defined]
        ranked = getattr(self.replay_buffer, "use_prioritized", False)
        replay = replace(
            config.replay,
            capacity=max(capacity(self, config), config.replay.learning_starts),
            sampling=Draw.PRIORITIZED if ranked else Draw.UNIFORM,
        )
        config = replace(
            config,
            run=replace(config.run, mode=Mode.ASYNC, engine=Engine.RAY, env_steps=ENDLESS),
            env=made_from.config.env,
            actor=replace(config.actor, num=int(getattr(self.environment, "num_workers", 1))),
            replay=replay,
            cluster=self.cluster,
        )
        return made_from._replace(config=config)

    def _refuse_another_host(self, parts: Parts) -> None:
        needed = self.cluster.learner_resources
        if not needed:
            return
        here = socket.gethostname()
        nodes = parts.cluster.nodes() if parts.cluster is not None else []
        found = [node.resources for node in nodes if node.name == here]
        if not any(all(r.get(k, 0.0) >= v for k, v in needed.items()) for r in found):
            raise ConfigError(
                f"cluster_config has learner_resources {dict(needed)}, and {here}, where this "
                f"loop learns, has {found or 'no Ray'}; start it on a host that has them"
            )


def _cluster(given: Any) -> ClusterConfig:
    if isinstance(given, ClusterConfig):
        return given
    if is_dataclass(given) and not isinstance(given, type):
        given = asdict(given)
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"cluster_config is a mapping or a dataclass with settings of cluster, got {given!r}; "
            "give one of them, or leave it out"
        )
    settings = dict(given or {})
    if settings.get("address") == LOCAL:
        settings["address"] = None
    changes = {f"cluster.{key}": value for key, value in settings.items()}
    return load(changes={**changes, "run.mode": "async", "run.engine": "ray"}).cluster


def _refuse_unbuildable(environment: Any, agent: Any) -> None:
    for name, part in {"env_factory": environment, "recipe": agent, "learner": agent}.items():
        if not hasattr(part, name):
            raise ConfigError(
                f"actors on other hosts are built from the environment's env_factory and the "
                f"agent's recipe and learner, got a {type(part).__name__} without {name}; add it, "
                "or use MainLoop"
            )

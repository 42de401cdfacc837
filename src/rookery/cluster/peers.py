"""Interface of the plugin that lets runs sample from each other's replay buffers.

The setting `sharing.pool` is a folder; runs with the same folder share their replay.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from rookery import plugins
from rookery.cluster.messages import PoolIdentity
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.replay.replay import HostPeers, LocalPeers, ReplayPeers
from rookery.types import EnvSpec

if TYPE_CHECKING:
    from rookery.cluster.cluster_group import ClusterActors


class ReplayPeersBuilder(Protocol):
    """Plugin interface: builds the objects through which runs sample from each other's replay.

    Runs with the same `sharing.pool` folder sample from each other's replay buffers.
    """

    def local(self, config: Config, spec: EnvSpec, run_id: str) -> LocalPeers:
        """Adds a run whose replay is on this host to the pool of runs that share replay.

        Returns the object through which the run samples from the other runs' replay buffers.
        """

    def on_host(
        self, config: Config, spec: EnvSpec, identity: PoolIdentity, place: int
    ) -> HostPeers:
        """Adds the replay shard of one cluster host to the pool of runs that share replay.

        The shard is the part of the run's replay buffer on that host. Returns the object with which
        the host worker shares the shard's rows with other runs, and samples from their rows on this
        host.
        """

    def on_cluster(self, group: "ClusterActors", rng: np.random.Generator) -> ReplayPeers:
        """Returns the object through which a cluster run's learner samples from other runs' replay.

        The samples are read on the hosts of the learner's cluster, where `on_host` was called.
        """

    def clear(self, config: Config) -> None:
        """Deletes shared replay files that killed processes left in the folder `sharing.pool`."""


def peers_builder(config: Config) -> ReplayPeersBuilder:
    """Returns the builder of replay sharing between runs, which an installed plugin provides.

    Raises ConfigError if no installed plugin provides one.
    """
    for name in plugins.each("replay_peers"):
        found: ReplayPeersBuilder = plugins.load(name)
        return found
    raise ConfigError(
        f"sharing.pool is {config.sharing.pool}, and no plugin that is installed shares replay; "
        "leave it out, or install Rookery with its package `sharing`"
    )

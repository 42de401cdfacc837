"""Builds a run's access to other runs' replay buffers (`ReplayPeers`), on a host or a cluster."""

from pathlib import Path

import numpy as np

from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.messages import PoolIdentity
from rookery.config.schema import Config
from rookery.sharing import stale_pools
from rookery.sharing.cluster_sharing import ClusterPoolMember, HostPoolMember
from rookery.sharing.pool_member import PoolMember
from rookery.types import EnvSpec


class PoolPeersBuilder:
    """Builds replay sharing through pools, folders of replay buffers in each host's shared memory.

    Implements `ReplayPeersBuilder`, the interface by which a run gets its replay sharing.
    """

    def local(self, config: Config, spec: EnvSpec, run_id: str) -> PoolMember:
        return PoolMember(config, spec, run_id)

    def on_host(
        self, config: Config, spec: EnvSpec, identity: PoolIdentity, place: int
    ) -> HostPoolMember:
        return HostPoolMember(
            config, spec, identity.run_id, family=identity.family, index=1 + place
        )

    def on_cluster(self, actors: ClusterActors, rng: np.random.Generator) -> ClusterPoolMember:
        return ClusterPoolMember(actors, rng)

    def clear(self, config: Config) -> None:
        if config.sharing.pool is not None:
            stale_pools.clear(Path(config.sharing.pool))
            stale_pools.remove_if_empty(Path(config.sharing.pool))


BUILDER = PoolPeersBuilder()

"""A Ray cluster of two nodes on this machine, for a test that talks to it line by line, in JSON.

two_ray_nodes.py FOLDER

    (at first)      → its address
    remove          → ends the second node without a word to anybody
    add             → starts another one
    where           → the node of each living actor
    alive           → how many nodes there are
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ray
from ray.cluster_utils import Cluster

OPTIONS = {"num_cpus": 1, "object_store_memory": 80 << 20}


def main(folder: str) -> None:
    said = os.fdopen(os.dup(1), "w")  # Ray prints
    os.dup2(2, 1)
    head = {**OPTIONS, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = [cluster.add_node(**OPTIONS, temp_dir=folder)]
    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    deeds: dict[str, Callable[[], Any]] = {
        "remove": lambda: cluster.remove_node(second.pop(), allow_graceful=False),
        "add": lambda: second.append(cluster.add_node(**OPTIONS, temp_dir=folder)),
        "where": where,
        "alive": lambda: sum(node["Alive"] for node in ray.nodes()),
    }
    print(json.dumps(cluster.address), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(deeds[line.strip()]()), file=said, flush=True)
    ray.shutdown()
    cluster.shutdown()


def where() -> list[str]:
    """Asks the head itself: the dashboard's list needs a dashboard."""
    table = ray._private.state.actors().values()
    return sorted(actor["Address"]["NodeID"] for actor in table if actor["State"] == "ALIVE")


if __name__ == "__main__":
    main(sys.argv[1])

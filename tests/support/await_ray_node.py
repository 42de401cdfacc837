"""Waits until a Ray head counts a node among the living, or no longer does.

await_ray_node.py HOST:PORT NODE_NAME alive|gone SECONDS

Exits 0 once it is so, and 1 with the names that are counted when time is up. Joins nothing: it
asks the head alone.
"""

import socket
import sys
import time

from ray._raylet import GcsClient
from ray.exceptions import RayError

ALIVE = 0  # GcsNodeInfo.GcsNodeState


def counted(head: str) -> set[str] | None:
    """Returns the names of the living nodes, None where the head does not answer."""
    host, _, port = head.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
        infos = GcsClient(address=head).get_all_node_info(timeout=2.0).values()
    except (OSError, RayError):
        return None
    return {info.node_name for info in infos if info.state == ALIVE}


def main(head: str, name: str, wanted: str, within_s: float) -> int:
    deadline = time.monotonic() + within_s
    while (found := counted(head)) is None or (name in found) != (wanted == "alive"):
        if time.monotonic() > deadline:
            print(f"{head} counts {found}; {name} should be {wanted}", file=sys.stderr)
            return 1
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))

"""A parameter server in a process of its own, for tests that look at its memory or kill it.

    python parameter_server_process.py '{"port": 0, "keys": {}, "limits": {}, "server": {}}'

Says its URL on the first line of stdout and ends with its standard input.
"""

import json
import sys

import numpy as np

from rookery.server.http.limits import Limits
from rookery.server.parameter_server import ParameterServer


def main() -> None:
    asked = json.loads(sys.argv[1])
    initial = {"weight": np.zeros(asked.get("size", 1000), np.float32)}
    server = ParameterServer(initial, update_frequency=1, **asked.get("server", {}))
    url = server.start_server(
        "localhost",
        asked.get("port", 0),
        keys=asked["keys"],
        limits=Limits(**asked.get("limits", {})),
        **asked.get("tls", {}),
    )
    print(url, flush=True)
    sys.stdin.read()
    server.stop_server()


if __name__ == "__main__":
    main()

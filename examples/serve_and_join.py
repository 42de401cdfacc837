"""A parameter server and two clients that train one network, each in a process of its own.

python examples/serve_and_join.py
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOKERY = [sys.executable, "-m", "rookery"]
RUN_DIR = Path("runs") / "together"
WHERE = ["--run-dir", str(RUN_DIR)]


def start(*words: str) -> subprocess.Popen[str]:
    """Starts a command of rookery, whose answer is to be read by this program."""
    command = [*ROOKERY, *words, "--json", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for the end of a command; returns its answer."""
    said, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args} ended with exit code {process.returncode}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def joining(client: str) -> list[str]:
    """Makes the key of a client; returns the command by which it joins the server."""
    command = [*ROOKERY, "serve", "keys", "add", client, *WHERE, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return shlex.split(json.loads(done.stdout)["join"])[1:]


server = start("serve", "--scenario", "corridor", "--bind", "localhost:0", "--rounds=200", *WHERE)
processes = [server]
try:
    while not (RUN_DIR / "address.json").exists():  # the server writes it as soon as it listens
        if server.poll() is not None:
            sys.exit("the server did not start")
        time.sleep(0.1)
    processes += [start(*joining(client)) for client in ("alice", "bob")]
    for client in map(answer, processes[1:]):
        print(f"{client['client']}: {client['accepted']} of its gradients were accepted")
    print(f"{RUN_DIR}: version {answer(server)['version']} of the parameters")
finally:
    for process in processes:
        process.kill()

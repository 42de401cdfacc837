"""A server and its clients as processes of their own, for tests that watch or kill them."""

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

from rookery.cli.main import main
from run_processes import CommandForker, Started, words

SETTINGS = {
    "net.hidden": "[32]",
    "replay.capacity": 2_000,
    "replay.learning_starts": 200,
    "replay.batch_size": 32,
    "actor.chunk": 32,
}  # of a corridor: small enough that a busy machine is quick


def free_port() -> int:
    """Returns a port that a server may have, and have again after its death."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class House:
    """One server's folder and port, and who goes in and out."""

    def __init__(self, forker: CommandForker, folder: Path, *clients: str):
        self.forker, self.folder, self.port = forker, folder, free_port()
        self.scheme = "http"
        self.run_dir = folder / "server"
        for client in clients:
            argv = ["serve", "keys", "add", client, "--run-dir", str(self.run_dir)]
            assert main(argv) == 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def key(self, client: str) -> Path:
        return self.run_dir / f"{client}.key"

    def serve(self, *more: str) -> Started:
        argv = ["serve", "--scenario", "corridor", *words(SETTINGS), "--json"]
        place = ["--bind", f"localhost:{self.port}", "--run-dir", str(self.run_dir)]
        return self.start([*argv, *place, *more])

    def join(self, client: str, *more: str, key: Path | None = None) -> Started:
        argv = ["join", self.url, "--client", client, "--key-file", str(key or self.key(client))]
        return self.start([*argv, "--json", *more])

    def start(self, argv: list[str]) -> Started:
        """Starts a command in a folder of its own: two at once would write to the same files."""
        place = self.folder / f"process-{len(list(self.folder.iterdir()))}"
        place.mkdir()
        return self.forker.start(argv, place)

    def status(self) -> dict[str, Any]:
        """Returns what /status says; {} while the server does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/status", timeout=5.0) as answer:
                said: dict[str, Any] = json.load(answer)
                return said
        except (OSError, ValueError):
            return {}

    @property
    def version(self) -> int:
        return int(self.status().get("version", -1))

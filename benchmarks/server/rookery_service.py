"""Rookery's parameter service on loopback: clients that push and pull, with authentication on.

    python benchmarks/server/rookery_service.py --clients 4 --seconds 4 [--tls]

The model is 10 MB of float32 in ten arrays. Each client is a process that pushes an update of all
of it and pulls all of it, in turns; every message has a key, every body is hashed on both sides,
every update is checked, and each four are averaged and applied. Four clients and the server share
this machine. The last line on stdout is
`{"value": MB/s of pushes and pulls together, "pushes", "pulls", ...}`.
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rookery.server.http.remote_server import RemoteParameterServer
from rookery.server.parameter_server import ParameterServer

MB = 1e6
LAYERS, WIDTH = 10, 250_000  # 10 MB of float32
WARMUP = 3  # pushes and pulls before the clock starts


def model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"layer{k}": rng.standard_normal(WIDTH, dtype=np.float32) for k in range(LAYERS)}


def turn(server: RemoteParameterServer, name: str, update: dict[str, np.ndarray]) -> None:
    """Pushes once and pulls once; ends the trial where either does not come through."""
    parameters = server.get_parameters()
    receipt = server.push_gradients(name, update, version=parameters.version)
    if not receipt.accepted:
        sys.exit(f"{name}: an update was refused: {receipt.code}")


def work(url: str, name: str, ca: str | None, seconds: float) -> None:
    """A client: gets its key and its start by standard input, and says how much it did."""
    update = model(1)
    with RemoteParameterServer(url, name, sys.stdin.readline().strip(), ca=ca) as server:
        server.register_worker(name)
        for _ in range(WARMUP):
            turn(server, name, update)
        print("ready", flush=True)
        sys.stdin.readline()
        turns, begun = 0, time.monotonic()
        while (spent := time.monotonic() - begun) < seconds:
            turn(server, name, update)
            turns += 1
    print(json.dumps({"turns": turns, "seconds": spent}), flush=True)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a certificate for localhost that signs itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", *words.split(), "-addext", names, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def start(url: str, names: list[str], ca: Path | None, seconds: float) -> list[subprocess.Popen]:
    trust = ["--ca", str(ca)] if ca else []
    command = [sys.executable, __file__, "--seconds", str(seconds), *trust, "--url", url, "--name"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return [subprocess.Popen([*command, name], **pipes) for name in names]


def say(child: subprocess.Popen, line: str) -> None:
    child.stdin.write(line + "\n")
    child.stdin.flush()


def heard(child: subprocess.Popen) -> str:
    line = child.stdout.readline()
    if not line:
        sys.exit(f"a client ended with exit code {child.wait()}")
    return line


def measure(clients: int, seconds: float, tls: bool) -> dict[str, float]:
    keys = {f"client{k}": secrets.token_urlsafe(32) for k in range(clients)}
    server = ParameterServer(model(0), "average", update_frequency=clients)
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(Path(folder)) if tls else (None, None)
        url = server.start_server("localhost", 0, keys=keys, certificate=cert, private_key=key)
        children = start(url, list(keys), cert, seconds)
        try:
            for child, secret in zip(children, keys.values(), strict=True):
                say(child, secret)
            for child in children:
                heard(child)
            for child in children:
                say(child, "go")
            done = [json.loads(heard(child)) for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()
            server.stop_server()
    turns = sum(each["turns"] for each in done)
    rate = sum(each["turns"] / each["seconds"] for each in done)
    return {
        "value": rate * 2 * 4 * LAYERS * WIDTH / MB,
        "pushes": turns,
        "pulls": turns,
        "versions": server.version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="ignored: nothing here depends on chance")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--url", help="be a client of this service")
    parser.add_argument("--name", help="as this client")
    parser.add_argument("--ca", help="trust this certificate")
    args = parser.parse_args()
    if args.url:
        work(args.url, args.name, args.ca, args.seconds)
        return
    print(json.dumps(measure(args.clients, args.seconds, args.tls)))


if __name__ == "__main__":
    main()

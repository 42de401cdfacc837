"""What clients that wait for a version cost the parameter service.

    python benchmarks/server/rookery_waiting.py --clients 1000 --seconds 20

Each client has a name, a key and a connection of its own, and asks again whenever an answer says
that there is nothing newer, as `RemoteParameterServer` does. The server is a process of its own,
and only its processor time counts. The last line on stdout is
`{"value": % of a core, "asked": requests}`.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil

from rookery.server.http import wire_format
from rookery.server.http.remote_server import WAIT_S
from rookery.server.http.wire_format import Kind, Request
from rookery.server.parameter_server import ParameterServer

WARMUP_S = 2.0


def keys(clients: int) -> dict[str, str]:
    return {f"client{k}": f"{k:040}" for k in range(clients)}


def serve(clients: int) -> None:
    """Is the server until its standard input ends."""
    server = ParameterServer({"weight": np.zeros(1000, np.float32)})
    print(server.start_server("localhost", 0, keys=keys(clients)), flush=True)
    sys.stdin.read()
    server.stop_server()


def head(client: str, key: str, wait_s: float) -> bytes:
    said = replace(Request(kind=Kind.PULL, client=client), version=0, wait_s=wait_s)
    fields = wire_format.headers(said) | {wire_format.AUTHORIZATION: wire_format.BEARER + key}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {wire_format.PATH} HTTP/1.1\r\n{lines}content-length: 0\r\n\r\n".encode()


async def wait(port: int, client: str, key: str, first_s: float, asked: list[str]) -> None:
    """Is a client: waits for `first_s`, and then for as long as clients do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wait_s = first_s
    while True:
        writer.write(head(client, key, wait_s))
        asked.append(client)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            sys.exit(f"{client} was refused: {answer!r}")
        wait_s = WAIT_S


async def measured(process: psutil.Process, port: int, clients: int, seconds: float) -> dict:
    chance, asked = random.Random(0), []
    waiting = [
        asyncio.create_task(wait(port, client, key, chance.uniform(0, WAIT_S), asked))
        for client, key in keys(clients).items()
    ]
    await asyncio.sleep(WARMUP_S)
    before, asked_before = sum(process.cpu_times()[:2]), len(asked)
    done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if done:
        sys.exit(f"a client ended: {done.pop().exception()!r}")
    spent = sum(process.cpu_times()[:2]) - before
    for task in waiting:
        task.cancel()
    return {"value": 100 * spent / seconds, "asked": len(asked) - asked_before}


def measure(clients: int, seconds: float) -> dict:
    command = [sys.executable, __file__, "--serve", "--clients", str(clients)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            return asyncio.run(measured(psutil.Process(server.pid), port, clients, seconds))
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="ignored: the first waits are always the same")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--serve", action="store_true", help="be the server")
    args = parser.parse_args()
    if args.serve:
        serve(args.clients)
        return
    print(json.dumps(measure(args.clients, args.seconds)))


if __name__ == "__main__":
    main()

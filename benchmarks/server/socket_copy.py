"""The floor of a parameter service: the same bytes over bare sockets, and nothing else.

    python benchmarks/server/socket_copy.py --clients 4 --seconds 4

Each client is a process that sends 10 MB and gets 10 MB, in turns, over TCP on loopback; a thread
for each of them receives into one buffer and sends another. Nothing is hashed, checked or
applied. The last line on stdout is `{"value": MB/s of both directions together}`.
"""

import argparse
import json
import socket
import subprocess
import sys
import threading
import time

MB = 1e6
SIZE = 10_000_000
WARMUP = 3


def receive(connection: socket.socket, into: memoryview) -> bool:
    at = 0
    while at < len(into):
        got = connection.recv_into(into[at:])
        if not got:
            return False
        at += got
    return True


def serve(connection: socket.socket) -> None:
    inbox, outbox = memoryview(bytearray(SIZE)), bytes(SIZE)
    with connection:
        while receive(connection, inbox):
            connection.sendall(outbox)


def accept(listener: socket.socket, clients: int) -> None:
    for _ in range(clients):
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def turn(connection: socket.socket, outbox: bytes, inbox: memoryview) -> None:
    connection.sendall(outbox)
    if not receive(connection, inbox):
        sys.exit("the server has gone")


def work(port: int, seconds: float) -> None:
    inbox, outbox = memoryview(bytearray(SIZE)), bytes(SIZE)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(WARMUP):
            turn(connection, outbox, inbox)
        print("ready", flush=True)
        sys.stdin.readline()
        turns, begun = 0, time.monotonic()
        while (spent := time.monotonic() - begun) < seconds:
            turn(connection, outbox, inbox)
            turns += 1
    print(json.dumps({"turns": turns, "seconds": spent}), flush=True)


def heard(child: subprocess.Popen) -> str:
    line = child.stdout.readline()
    if not line:
        sys.exit(f"a client ended with exit code {child.wait()}")
    return line


def measure(clients: int, seconds: float) -> float:
    """Returns MB/s of all clients."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener, clients), daemon=True).start()
    command = [sys.executable, __file__, "--seconds", str(seconds)]
    command += ["--port", str(listener.getsockname()[1])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(clients)]
    try:
        for child in children:
            heard(child)
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        done = [json.loads(heard(child)) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return sum(each["turns"] / each["seconds"] for each in done) * 2 * SIZE / MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="ignored: nothing here is random")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--port", type=int, help="be a client of this port")
    args = parser.parse_args()
    if args.port:
        work(args.port, args.seconds)
        return
    print(json.dumps({"value": measure(args.clients, args.seconds)}))


if __name__ == "__main__":
    main()

"""The inside of a process that calls one function, again and again, with what it is sent."""

import importlib
from multiprocessing.connection import Connection

from rookery.engines.processes import receive, send


def serve(connection: Connection, target: str) -> None:
    """Answers until the parent is gone; `target` is module:function."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    while True:
        send(connection, function(*receive(connection)))

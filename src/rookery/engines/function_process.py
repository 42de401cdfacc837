"""Main function of a child process that calls one function for every message it receives."""

from multiprocessing.connection import Connection

from rookery import plugins
from rookery.engines.processes import receive, send


def serve(connection: "Connection[object, object]", target: str) -> None:
    """Calls `target` (module:function) for each message and sends back its result.

    Runs until the parent process is gone.
    """
    function = plugins.load(target)
    while True:
        send(connection, function(*receive(connection)))

"""The inside of a role's process: hands it orders, lets it roam, says how it failed."""

import importlib
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from rookery.engines.interface import Close, Role, describe
from rookery.engines.processes import receive, send
from rookery.errors import ClosedError

LOOK_S = 0.01  # between two looks for orders while the role roams: a look is a system call


class Stay(NamedTuple):
    """What the process is for."""

    target: str  # module:builder
    setup: Any


def serve(connection: Connection, stay: Stay) -> None:
    """Works until told to close, until the role fails, or until the parent is gone."""
    try:
        role = _build(stay)
        try:
            _obey(connection, role)
        finally:
            role.close()
    except (EOFError, ClosedError):
        raise
    except Exception as error:  # whatever it was, whoever started us wants to know
        send(connection, describe(error, traceback.format_exc()))
        sys.exit(3)


def _build(stay: Stay) -> Role:
    module, _, builder = stay.target.partition(":")
    role: Role = getattr(importlib.import_module(module), builder)(stay.setup)
    return role


def _obey(connection: Connection, role: Role) -> None:
    looked = 0.0
    while True:
        if role.roaming and time.monotonic() - looked < LOOK_S:
            if (news := role.roam()) is not None:
                send(connection, news)
            continue
        looked = time.monotonic()
        if role.roaming and not connection.poll(0):
            continue
        order = receive(connection)
        if isinstance(order, Close):
            return
        send(connection, role.do(order))

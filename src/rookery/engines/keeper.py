"""The inside of a role's process: hands it orders, lets it roam, says how it failed."""

import importlib
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from rookery.engines.interface import Close, Role, describe
from rookery.engines.processes import receive, send

LOOK_S = 0.01  # between two looks for orders while the role roams: a look is a system call
T = TypeVar("T")


class Stay(NamedTuple):
    """What the process is for."""

    target: str  # module:builder
    setup: Any


def serve(connection: Connection, stay: Stay) -> None:
    """Works until told to close, until the role fails, or until the parent is gone.

    Only what comes from the connection itself means that the parent is gone: a role's own EOFError,
    for one, means that something it talks to is.
    """
    role: Role = _try(connection, partial(_build, stay))
    try:
        _obey(connection, role)
    finally:
        _close(role)


def _close(role: Role) -> None:
    try:
        role.close()
    except Exception as error:  # a user's environment may raise anything; it is over all the same
        print(f"rookery: closing failed: {type(error).__name__}: {error}", file=sys.stderr)


def _build(stay: Stay) -> Role:
    module, _, builder = stay.target.partition(":")
    role: Role = getattr(importlib.import_module(module), builder)(stay.setup)
    return role


def _obey(connection: Connection, role: Role) -> None:
    looked = 0.0
    while True:
        if role.roaming and time.monotonic() - looked < LOOK_S:
            if (news := _try(connection, role.roam)) is not None:
                send(connection, news)
            continue
        looked = time.monotonic()
        if role.roaming and not connection.poll(0):
            continue
        order = receive(connection)
        if isinstance(order, Close):
            return
        send(connection, _try(connection, partial(role.do, order)))


def _try(connection: Connection, work: Callable[[], T]) -> T:
    """Does what may fail in any way; then whoever started us wants to know, and it is over."""
    try:
        return work()
    except Exception as error:  # a user's environment may raise anything
        send(connection, describe(error, traceback.format_exc()))
        sys.exit(3)

"""A child's side of the line to its parent."""

import socket
from multiprocessing.connection import Connection

import cloudpickle
import pytest

from rookery.engines import processes
from rookery.errors import ClosedError


def pair() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


def test_a_parent_that_hangs_up_is_gone():
    parent, child = pair()
    parent.close()

    with child, pytest.raises(ClosedError, match="the parent process is gone"):
        processes.receive(child)


def test_a_parent_that_ends_before_it_has_read_everything_is_gone():
    """The system then answers with a reset instead of an end."""
    parent, child = pair()
    processes.send(child, "a message that is not read")
    parent.close()

    with child, pytest.raises(ClosedError, match="the parent process is gone"):
        processes.receive(child)


def test_what_a_parent_sent_before_it_ended_is_still_received():
    parent, child = pair()
    parent.send_bytes(cloudpickle.dumps("order"))
    parent.close()

    with child:
        assert processes.receive(child) == "order"

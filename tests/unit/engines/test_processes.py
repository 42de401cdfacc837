"""A child's side of the line to its parent."""

import socket
import threading
from multiprocessing.connection import Connection

import cloudpickle
import pytest

from rookery.engines import child_process, processes
from rookery.errors import ClosedError


class Interrupted:
    """A role whose work raises what Ctrl+C raises."""

    self_driven = False

    def __init__(self, setup):
        pass

    def do(self, order):
        raise KeyboardInterrupt

    def close(self):
        pass


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


def test_a_keyboard_interrupt_of_an_environment_is_reported_to_the_parent():
    """Children ignore Ctrl+C, so that only the code they call can raise it."""
    parent, child = pair()
    threading.Thread(target=processes.send, args=(parent, "an order"), daemon=True).start()

    with child, pytest.raises(SystemExit):
        child_process.serve_role(child, processes.RoleSpec(f"{__name__}:Interrupted", None))
    failed = processes.receive(parent)
    assert failed.environment
    assert "the environment raised KeyboardInterrupt" in failed.summary

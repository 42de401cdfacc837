"""Loops: how rows arrive at the learner, and who drives them."""

from collections.abc import Callable, Iterator

from rookery.config.schema import Mode
from rookery.event import Event
from rookery.loops.asynchronous import asynchronous
from rookery.loops.onboard import onboard
from rookery.loops.sync import sync
from rookery.loops.wiring import Parts

LOOPS: dict[Mode, Callable[[Parts], Iterator[Event]]] = {
    Mode.SINGLE: sync,  # with one actor, in the learner's process
    Mode.SYNC: sync,
    Mode.ASYNC: asynchronous,
    Mode.DEVICE: onboard,
}

"""Loops: how rows arrive at the learner, and who drives them."""

from collections.abc import Callable, Iterator

from rookery.config.schema import Mode
from rookery.event import Event
from rookery.loops.single import single
from rookery.loops.wiring import Parts

LOOPS: dict[Mode, Callable[[Parts], Iterator[Event]]] = {
    Mode.SINGLE: single,
}

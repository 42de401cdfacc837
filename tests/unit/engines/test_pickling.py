"""What cannot be sent to another process is named, with the part of it that cannot be pickled."""

import threading
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import pytest

from rookery.engines.pickling import pickled
from rookery.engines.processes import spawn
from rookery.errors import ConfigError


class Holder:
    def __init__(self, part: Any) -> None:
        self.part = part

    def make(self) -> Any:
        return self.part


class Setup(NamedTuple):
    number: int
    factory: Any


def closure(part: Any) -> Any:
    return lambda: part


def default(part: Any) -> Any:
    def make(given: Any = part) -> Any:
        return given

    return make


LOCK = threading.Lock()
HOLDERS = {
    "part": closure(LOCK),
    "default 0": default(LOCK),
    "self.part": Holder(LOCK).make,
    "function.part": partial(closure(LOCK)),
    "argument 0": partial(print, LOCK),
    "given": partial(print, given=LOCK),
    "key": {"key": LOCK},
    "entry 1": [0, LOCK],
    "factory.part.part": Setup(3, closure(Holder(LOCK))),
}


@pytest.mark.parametrize(("place", "value"), HOLDERS.items(), ids=HOLDERS)
def test_the_part_that_cannot_be_pickled_is_named_with_its_type(place, value):
    said = rf"env=f cannot be sent to other processes: its '{place}' is a _thread.lock \(TypeError"

    with pytest.raises(ConfigError, match=said):
        pickled(value, "env=f")


def test_what_can_be_pickled_comes_back():
    assert cloudpickle.loads(pickled(closure([1, 2]), "env=f"))() == [1, 2]


def test_no_process_is_started_with_what_cannot_be_pickled():
    with pytest.raises(ConfigError, match="the process 'eval' is started with cannot be sent"):
        spawn("no.such:function", Setup(1, LOCK), name="eval")

"""Slots in shared memory through which actors ask the inference server for actions.

Every actor has one slot and at most one open request. The actor increments the slot's request
number once its request is written; the server sets the answer number once its answer is written:

    slot.ask(request)                       # actor: writes, then `asked` += 1
    slot.question(), slot.tell(...)         # server: answers, then `answered` = the number it read
    slot.take()                             # actor, once `answered` is `asked`

There are no locks. If an actor dies, the answer to its request is ignored: the restarted actor uses
the next request number, so that it never mistakes the old answer for its own. If the server dies,
requests stay open and the restarted server answers them. A request contains its own random seed, so
that answering it twice gives the same actions.
"""

import contextlib
import math
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rookery.algorithms import Acted
from rookery.errors import ClosedError, ConfigError
from rookery.replay.ring import allocate, default_directory, private_file
from rookery.replay.shared_memory import look, post
from rookery.types import Array, EnvSpec, Floats, Rows

_LINE = 64
_WORDS = 8  # in a line
_HEAD = 4 * _WORDS  # words of the server: its heartbeat, and its totals
_BEAT, _QUESTIONS, _OBSERVATIONS, _BATCHES = 0, 8, 9, 10
_SEAT = 5 * _WORDS  # words of a slot, before its arrays
_ASKED, _ANSWERED, _ASKING, _ANSWER, _WAITED = 0, 8, 16, 24, 32
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

Layout = dict[str, tuple[tuple[int, ...], str]]  # name → shape and dtype, of one slot


class InferenceRequest(NamedTuple):
    """An actor's request to the inference server for actions: `Algorithm.act` arguments, seed."""

    leaves: Mapping[str, Array]  # [E, *leaf] each, as seen: frames are stacked
    memory: Floats | None  # [E, M]
    seed: int
    epsilon: float
    noise: bool
    values: bool

    @property
    def size(self) -> int:
        return len(next(iter(self.leaves.values())))


class InferenceTotals(NamedTuple):
    """Totals of the inference server: requests, observations, batches, waiting time of actors."""

    questions: int = 0
    observations: int = 0
    batches: int = 0  # requests that were answered together count as one
    waited_s: float = 0.0  # summed over all actors


def layout_of(spec: EnvSpec, memory: int, envs: int) -> Layout:
    """Returns name, shape and dtype of each array of a slot, for an actor with `envs` environments.

    A slot is the shared memory through which an actor requests actions from the inference server.
    `memory` is the size of the policy's recurrent state.
    """
    deep = spec.frame_stack
    shapes: Layout = {}
    for leaf in spec.obs:
        seen = (deep * leaf.shape[0], *leaf.shape[1:]) if deep > 1 else leaf.shape
        shapes[f"obs.{leaf.name}"] = (seen, leaf.dtype)
    shapes |= {"memory": ((memory,), "float32"), "remembered": ((memory,), "float32")}
    shapes["action"] = (spec.action.shape, spec.action.dtype)
    shapes |= {"taken": ((), "float32"), "best": ((), "float32")}
    shapes |= {f"extra.{extra.name}": (extra.shape, extra.dtype) for extra in spec.extras}
    return {name: ((envs, *shape), dtype) for name, (shape, dtype) in shapes.items()}


class InferenceSlot:
    """Shared memory of one actor: its last action request, and the inference server's answer."""

    def __init__(self, words: Rows, arrays: dict[str, Array]):
        self._words, self._arrays = words, arrays
        self._params = words[_ASKING : _ASKING + _WORDS]
        self._epsilon = words[_ASKING + 2 : _ASKING + 3].view(np.float64)
        self._leaves = {n[4:]: a for n, a in arrays.items() if n.startswith("obs.")}
        self._extras = {n[6:]: a for n, a in arrays.items() if n.startswith("extra.")}

    @property
    def asked(self) -> int:
        return look(self._words, _ASKED)

    @property
    def answered(self) -> bool:
        """Whether the inference server has answered the actor's last request."""
        return look(self._words, _ANSWERED) == look(self._words, _ASKED)

    def ask(self, question: InferenceRequest) -> None:
        """Writes the actor's request for actions into shared memory, for the inference server.

        The actor's previous request must be answered, unless the actor was restarted after a crash.
        """
        size = question.size
        for name, leaf in question.leaves.items():
            self._leaves[name][:size] = leaf
        remembers = question.memory is not None
        if remembers:
            self._arrays["memory"][:size] = question.memory
        flags = (size, question.seed, 0, question.noise, question.values, remembers)
        self._params[: len(flags)] = flags
        self._epsilon[0] = question.epsilon
        post(self._words, _ASKED, self.asked + 1)

    def question(self) -> InferenceRequest:
        """Returns the actor's last request for actions, as views of shared memory.

        The inference server calls it. The views are valid until the server writes its answer.
        """
        size, seed, _, noise, values, remembers = self._params[:6].tolist()
        return InferenceRequest(
            {name: leaf[:size] for name, leaf in self._leaves.items()},
            self._arrays["memory"][:size] if remembers else None,
            seed,
            float(self._epsilon[0]),
            bool(noise),
            bool(values),
        )

    def tell(self, number: int, acted: Acted, version: int) -> None:
        """Writes the inference server's answer to the actor's request with this number."""
        size, arrays = len(acted.action), self._arrays
        arrays["action"][:size] = acted.action
        valued, remembers = acted.best is not None, acted.memory is not None
        if valued:
            arrays["taken"][:size], arrays["best"][:size] = acted.taken, acted.best
        if remembers:
            arrays["remembered"][:size] = acted.memory
        given = 0
        for place, (name, column) in enumerate(self._extras.items()):
            if name in acted.extras:
                column[:size] = acted.extras[name]
                given |= 1 << place
        answer = (size, version, valued, remembers, given)
        self._words[_ANSWER : _ANSWER + len(answer)] = answer
        post(self._words, _ANSWERED, number)

    def take(self) -> Acted:
        """Returns a copy of the inference server's answer, for the actor.

        The next answer overwrites this one in shared memory.
        """
        size, version, valued, remembers, given = self._words[_ANSWER : _ANSWER + 5].tolist()
        arrays = self._arrays
        return Acted(
            arrays["action"][:size].copy(),
            arrays["taken"][:size].copy() if valued else None,
            arrays["best"][:size].copy() if valued else None,
            {
                name: column[:size].copy()
                for place, (name, column) in enumerate(self._extras.items())
                if given >> place & 1
            },
            arrays["remembered"][:size].copy() if remembers else None,
            version,
        )

    def waited(self, nanoseconds: int) -> None:
        """Adds `nanoseconds` to the time that this actor has waited for the inference server."""
        self._words[_WAITED] += nanoseconds

    @property
    def waited_ns(self) -> int:
        return look(self._words, _WAITED)


class InferenceSlots:
    """Shared memory of central inference: one slot for each actor's requests and answers.

    It also holds the heartbeat and the totals of the inference server.
    """

    def __init__(self, layout: Layout, count: int, *, fd: int | None = None):
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values()]
        padded = [-(-size // _LINE) * _LINE for size in sizes]
        self._layout, self._padded = layout, padded
        seat = 8 * _SEAT + sum(padded)
        total = 8 * _HEAD + count * seat
        self.fd = _new_file(total) if fd is None else fd
        self._map = mmap.mmap(self.fd, total)
        raw = np.frombuffer(self._map, dtype=np.uint8)
        self._words: Rows = raw[: 8 * _HEAD].view(np.int64)
        self._slots = [self._slot(raw, 8 * _HEAD + at * seat) for at in range(count)]

    def _slot(self, raw: Array, at: int) -> InferenceSlot:
        words: Rows = raw[at : at + 8 * _SEAT].view(np.int64)
        at, arrays = at + 8 * _SEAT, {}
        for (name, (shape, dtype)), size in zip(self._layout.items(), self._padded, strict=True):
            count = math.prod(shape) * np.dtype(dtype).itemsize
            arrays[name] = raw[at : at + count].view(dtype).reshape(shape)
            at += size
        return InferenceSlot(words, arrays)

    def __getitem__(self, index: int) -> InferenceSlot:
        return self._slots[index]

    def __len__(self) -> int:
        return len(self._slots)

    def open(self) -> Iterator[tuple[int, InferenceSlot, int]]:
        """Yields slot index, slot and request number of every actor request not answered yet.

        A slot is the shared memory for the requests of one actor.
        """
        for place, slot in enumerate(self._slots):
            if not slot.answered:
                yield place, slot, slot.asked

    def beat(self) -> None:
        """Records a heartbeat of the inference server: it is alive at the present time."""
        post(self._words, _BEAT, time.clock_gettime_ns(_CLOCK))

    @property
    def silence_s(self) -> float:
        """Seconds since the inference server's last heartbeat."""
        return (time.clock_gettime_ns(_CLOCK) - look(self._words, _BEAT)) / 1e9

    def count(self, questions: int, observations: int) -> None:
        """Adds one answered batch of requests and observations to the inference server's totals."""
        self._words[_QUESTIONS] += questions
        self._words[_OBSERVATIONS] += observations
        self._words[_BATCHES] += 1

    @property
    def done(self) -> InferenceTotals:
        questions, observations, batches = self._words[_QUESTIONS : _BATCHES + 1].tolist()
        waited_s = sum(slot.waited_ns for slot in self._slots) / 1e9
        return InferenceTotals(questions, observations, batches, waited_s)

    def close(self) -> None:
        """Unmaps the shared memory; raises ClosedError if it was unmapped before.

        The memory is freed when the last process has closed it.
        """
        if self.fd < 0:
            raise ClosedError("these slots were closed before; keep one owner for them")
        self._slots.clear()
        del self._words
        with contextlib.suppress(BufferError):  # a view outlives us: the kernel frees it later
            self._map.close()
        os.close(self.fd)
        self.fd = -1


def _new_file(size: int) -> int:
    directory = default_directory()
    fd = private_file(directory)
    try:
        allocate(fd, size, directory, what="the slots of the inference server")
    except (ConfigError, OSError):
        os.close(fd)
        raise
    return fd

"""Booths: where actors ask an oracle what to do, in one piece of shared memory.

Every actor has a booth of its own, and one question at a time. A question's number goes up before
it is to be answered, and the answer's number follows it once the answer is whole:

    booth.ask(question)                     # actor: writes, then `asked` += 1
    booth.question(), booth.tell(...)       # oracle: answers, then `answered` = what it had read
    booth.take()                            # actor, once `answered` is `asked`

Nobody holds anything. An actor that dies leaves a question that is answered in vain; its successor
asks the next number, and what is still said to the last one is not taken for its own. An oracle
that dies leaves questions open, and the next one finds them: a question brings its own seed, so it
is answered in the same way however often that is.
"""

import contextlib
import math
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rookery.algos import Acted
from rookery.errors import ClosedError, ConfigError
from rookery.replay.memory import look, post
from rookery.replay.ring import allocate, default_directory, private_file
from rookery.types import Array, EnvSpec, Floats, Rows

_LINE = 64
_WORDS = 8  # in a line
_HEAD = 4 * _WORDS  # words of the oracle's own: its heartbeat, and what it has done
_BEAT, _QUESTIONS, _OBSERVATIONS, _BATCHES = 0, 8, 9, 10
_SEAT = 5 * _WORDS  # words of a booth, before its arrays
_ASKED, _ANSWERED, _ASKING, _ANSWER, _WAITED = 0, 8, 16, 24, 32
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

Layout = dict[str, tuple[tuple[int, ...], str]]  # name → shape and dtype, of one booth


class Question(NamedTuple):
    """What `Algorithm.act` is asked, with a seed in the place of a generator."""

    leaves: Mapping[str, Array]  # [E, *leaf] each, as seen: frames are stacked
    memory: Floats | None  # [E, M]
    seed: int
    epsilon: float
    noise: bool
    values: bool

    @property
    def size(self) -> int:
        return len(next(iter(self.leaves.values())))


class Done(NamedTuple):
    """What was asked and answered since the run began."""

    questions: int = 0
    observations: int = 0
    batches: int = 0  # questions that were answered together count for one
    waited_s: float = 0.0  # by all actors


def layout_of(spec: EnvSpec, memory: int, envs: int) -> Layout:
    """Returns the arrays of a booth for an actor of so many environments."""
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


class Booth:
    """One actor's place."""

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
        """Is there nothing open?"""
        return look(self._words, _ANSWERED) == look(self._words, _ASKED)

    def ask(self, question: Question) -> None:
        """Puts a question; there must be none open but a dead actor's."""
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

    def question(self) -> Question:
        """Returns what is asked: views, which stay as they are until it is answered."""
        size, seed, _, noise, values, remembers = self._params[:6].tolist()
        return Question(
            {name: leaf[:size] for name, leaf in self._leaves.items()},
            self._arrays["memory"][:size] if remembers else None,
            seed,
            float(self._epsilon[0]),
            bool(noise),
            bool(values),
        )

    def tell(self, number: int, acted: Acted, version: int) -> None:
        """Answers the question of that number."""
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
        said = (size, version, valued, remembers, given)
        self._words[_ANSWER : _ANSWER + len(said)] = said
        post(self._words, _ANSWERED, number)

    def take(self) -> Acted:
        """Returns the answer: copies, since the next one comes into the same place."""
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
        """Notes how long an answer took."""
        self._words[_WAITED] += nanoseconds

    @property
    def waited_ns(self) -> int:
        return look(self._words, _WAITED)


class Booths:
    """All booths of a run, and the oracle's own words beside them."""

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
        self._booths = [self._booth(raw, 8 * _HEAD + at * seat) for at in range(count)]

    def _booth(self, raw: Array, at: int) -> Booth:
        words: Rows = raw[at : at + 8 * _SEAT].view(np.int64)
        at, arrays = at + 8 * _SEAT, {}
        for (name, (shape, dtype)), size in zip(self._layout.items(), self._padded, strict=True):
            count = math.prod(shape) * np.dtype(dtype).itemsize
            arrays[name] = raw[at : at + count].view(dtype).reshape(shape)
            at += size
        return Booth(words, arrays)

    def __getitem__(self, index: int) -> Booth:
        return self._booths[index]

    def __len__(self) -> int:
        return len(self._booths)

    def open(self) -> Iterator[tuple[int, Booth, int]]:
        """Yields places, their booths, and the numbers of questions that nobody has answered."""
        for place, booth in enumerate(self._booths):
            if not booth.answered:
                yield place, booth, booth.asked

    def beat(self) -> None:
        """Tells others that the oracle lives."""
        post(self._words, _BEAT, time.clock_gettime_ns(_CLOCK))

    @property
    def silence_s(self) -> float:
        """Seconds since the oracle's last heartbeat."""
        return (time.clock_gettime_ns(_CLOCK) - look(self._words, _BEAT)) / 1e9

    def count(self, questions: int, observations: int) -> None:
        """Notes a batch that was answered."""
        self._words[_QUESTIONS] += questions
        self._words[_OBSERVATIONS] += observations
        self._words[_BATCHES] += 1

    @property
    def done(self) -> Done:
        questions, observations, batches = self._words[_QUESTIONS : _BATCHES + 1].tolist()
        waited_s = sum(booth.waited_ns for booth in self._booths) / 1e9
        return Done(questions, observations, batches, waited_s)

    def close(self) -> None:
        """Unmaps the booths. The file vanishes with its last descriptor and map."""
        if self.fd < 0:
            raise ClosedError("these booths were closed before; keep one owner for them")
        self._booths.clear()
        del self._words
        with contextlib.suppress(BufferError):  # a view outlives us: the kernel frees it later
            self._map.close()
        os.close(self.fd)
        self.fd = -1


def _new_file(size: int) -> int:
    directory = default_directory()
    fd = private_file(directory)
    try:
        allocate(fd, size, directory, what="the actors' booths")
    except (ConfigError, OSError):
        os.close(fd)
        raise
    return fd

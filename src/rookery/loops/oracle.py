"""The oracle: one network that tells all actors what to do.

It looks for questions in their booths, answers those that it finds with one forward pass, and looks
again. Nobody is waited for: while it answers, the next questions come together by themselves.

It holds nothing that matters. Weights come from the board, and a question brings everything that
its answer depends on, so that another oracle may go on at any moment.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from rookery import seeding
from rookery.algos import Acted, build_algorithm
from rookery.algos.chance import Choir, Voice
from rookery.board import Board
from rookery.booth import Booth, Booths, Question, layout_of
from rookery.config.schema import Config, Mode
from rookery.errors import ConfigError
from rookery.learner import pick_device
from rookery.nets.arrays import arrays_of, load_arrays
from rookery.types import Array, EnvSpec

NAP_S, LONG_NAP_S = 0.00005, 0.0005  # between two looks for questions
IDLE = 40  # naps in a row, after which they are long ones: nobody plays now


class Setup(NamedTuple):
    """What an oracle is built from."""

    config: Config
    spec: EnvSpec  # of the actors' rows
    booths_fd: int
    board_fd: int


class Ready(NamedTuple):
    """News: it answers from now on."""


class Asked(NamedTuple):
    """A question that is to be answered."""

    seat: int
    booth: Booth
    number: int
    question: Question

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What one call of `act` cannot do both ways."""
        question = self.question
        return question.noise, question.values, question.memory is None


class Oracle:
    """Answers whatever is asked, for ever."""

    def __init__(self, setup: Setup):
        config, spec = setup.config, setup.spec
        self.config, self.spec, self.roaming = config, spec, True
        torch.set_num_threads(config.learner.threads)
        device = _device(config)
        self.algorithm = build_algorithm(config, replace(spec, extras=()))
        self.board = Board(arrays_of(self.algorithm.acting), fd=setup.board_fd)
        layout = layout_of(spec, self.algorithm.memory, config.actor.envs)
        self.booths = Booths(layout, config.actor.num, fd=setup.booths_fd)
        with _memory(config, device):
            self.algorithm.networks.to(device)
        self.device, self.version = device, 0
        self._period = _pull_period(config)
        self._since_pull = self._period  # nothing is pulled before somebody asks
        self._rngs = [np.random.Generator(np.random.PCG64()) for _ in range(len(self.booths))]
        self._naps, self._said = 0, False

    def do(self, order: Any) -> Any:
        raise NotImplementedError(f"an oracle takes no orders, got {order!r}")

    def roam(self) -> Ready | None:
        """Answers what is asked now, or naps."""
        self.booths.beat()
        asked = [
            Asked(seat, booth, number, booth.question())
            for seat, booth, number in self.booths.open()
        ]
        if asked:
            with _memory(self.config, self.device):
                self._answer(asked)
        elif self._said:
            self._nap()
        first, self._said = not self._said, True
        return Ready() if first else None

    def _nap(self) -> None:
        self._naps += 1
        time.sleep(NAP_S if self._naps < IDLE else LONG_NAP_S)

    def _answer(self, asked: Sequence[Asked]) -> None:
        observations = sum(one.question.size for one in asked)
        self._pull()
        for group in self._groups(asked):
            start = 0
            acted = self._act(group)
            for one in group:
                stop = start + one.question.size
                one.booth.tell(one.number, acted.of(slice(start, stop)), self.version)
                start = stop
        self._naps = 0
        self._since_pull += observations
        self.booths.count(len(asked), observations)

    def _pull(self) -> None:
        """Takes the newest published weights, where it is time to look for them."""
        if self._since_pull < self._period:
            return
        self._since_pull = 0
        weights = self.board.latest(self.version)
        if weights is not None:
            load_arrays(self.algorithm.acting, weights.arrays)
            self.version = weights.version

    def _groups(self, asked: Sequence[Asked]) -> list[list[Asked]]:
        """Returns the questions that one call can answer, together."""
        if not self.algorithm.together:
            return [[one] for one in asked]
        groups: dict[Any, list[Asked]] = {}
        for one in asked:
            groups.setdefault(one.kind, []).append(one)
        return list(groups.values())

    def _act(self, group: Sequence[Asked]) -> Acted:
        questions, rng = [one.question for one in group], self._chance(group)
        first = questions[0]
        leaves = {
            name: _joined([question.leaves[name] for question in questions])
            for name in first.leaves
        }
        memory = [question.memory for question in questions if question.memory is not None]
        return self.algorithm.act(
            self.spec.pack(leaves),
            rng,
            epsilon=first.epsilon,  # a choir has each one's own
            noise=first.noise,
            values=first.values,
            memory=_joined(memory) if memory else None,
        )

    def _chance(self, group: Sequence[Asked]) -> np.random.Generator:
        """Returns the generator that the questions' seeds stand for."""
        for one in group:
            seeding.reseed(self._rngs[one.seat], one.question.seed)
        if len(group) == 1:
            return self._rngs[group[0].seat]
        voices, start = [], 0
        for one in group:
            rows = slice(start, start + one.question.size)
            voices.append(Voice(rows, self._rngs[one.seat], one.question.epsilon))
            start = rows.stop
        return cast(np.random.Generator, Choir(voices))

    def close(self) -> None:
        try:
            self.booths.close()
        finally:
            self.board.close()


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _device(config: Config) -> torch.device:
    """The learner's, unless the actors have one."""
    if config.actor.devices:
        return pick_device(config.actor.devices[0], "actor.devices")
    return pick_device(config.learner.device)


def _pull_period(config: Config) -> int:
    """Observations between two looks for weights.

    In sync, where nobody learns while others play, every chunk is to be played with the newest.
    """
    newest = config.run.mode is Mode.SYNC or config.algo.on_policy
    return 1 if newest else config.actor.pull_period


@contextlib.contextmanager
def _memory(config: Config, device: torch.device) -> Iterator[None]:
    """Where a GPU has no memory left, says so in a way that nobody tries again."""
    try:
        yield
    except RuntimeError as error:  # torch has several for it
        if "out of memory" not in str(error):
            raise
        raise ConfigError(
            f"GPU out of memory: {device} has no room for the network that answers "
            f"{config.actor.num} actors of {config.actor.envs} environments; lower actor.envs, "
            f"name another device in actor.devices, or use --inference local ({error})"
        ) from error

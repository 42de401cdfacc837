"""Experience made up for tests, and what folding it must give, by definition.

A `Step` is what an actor would write in one row. `Told` knows a list of them, in the order of
their arrival, and answers in plain Python what the compiled walks must answer.
"""

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from rookery.replay.fold import Chains
from rookery.replay.ring import Ring, obs_column
from rookery.types import ActionSpec, Array, End, EnvSpec, Leaf, LeafKind

VECTOR = EnvSpec("vector", (Leaf("", (2,), "float32", LeafKind.VECTOR),), ActionSpec(n=3))
DIALS = EnvSpec(
    "dials",
    (Leaf("", (2,), "float32", LeafKind.VECTOR),),
    ActionSpec(shape=(3,), sizes=(3, 5, 2)),
)
IMAGE = EnvSpec("image", (Leaf("", (1, 2, 3), "uint8", LeafKind.IMAGE),), ActionSpec(n=3), 3)
MIXED = EnvSpec(
    "mixed",
    (
        Leaf("place", (2,), "float32", LeafKind.VECTOR),
        Leaf("seen", (2, 2, 2), "uint8", LeafKind.IMAGE),
        Leaf("held", (1,), "int64", LeafKind.DISCRETE, sizes=(500,)),
    ),
    ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    frame_stack=2,
)


class Move(Enum):
    """What may happen to an environment."""

    RUN = "run"
    TERMINATE = "terminate"
    TRUNCATE = "truncate"
    LOSE = "lose"  # the episode is given up without a final observation
    DIE = "die"  # its actor is replaced by the next incarnation, in the middle of everything


class Step(NamedTuple):
    """One row, but for its observation and action."""

    actor: int
    env: int
    incarnation: int
    episode: int
    t: int
    end: End
    reward: float


def play(moves: Iterable[tuple[int, int, Move]]) -> list[Step]:
    """Turns (actor, env, move) into rows, as actors write them."""
    steps: list[Step] = []
    incarnations: dict[int, int] = {}
    lanes: dict[tuple[int, int], tuple[int, int]] = {}  # episode, t
    for actor, env, move in moves:
        if move is Move.DIE:
            incarnations[actor] = incarnations.get(actor, 0) + 1
            lanes = {lane: at for lane, at in lanes.items() if lane[0] != actor}
            continue
        episode, t = lanes.get((actor, env), (0, 0))
        if move is Move.LOSE:
            lanes[actor, env] = (episode + 1, 0)
            continue
        end = _END[move] if t > 0 else End.RUNNING  # an episode has at least one step
        reward = (len(steps) * 7 % 13 - 6) / 4 if end is End.RUNNING else 0.0  # exact in float32
        steps.append(Step(actor, env, incarnations.get(actor, 0), episode, t, end, reward))
        lanes[actor, env] = (episode, t + 1) if end is End.RUNNING else (episode + 1, 0)
    return steps


_END = {Move.RUN: End.RUNNING, Move.TERMINATE: End.TERMINATED, Move.TRUNCATE: End.TRUNCATED}


def columns(spec: EnvSpec, steps: Sequence[Step], first: int) -> dict[str, Array]:
    """Returns a ring's columns for rows from `first` on; observations and actions tell the row."""
    rows = np.arange(first, first + len(steps))
    table = {name: np.array([getattr(s, name) for s in steps]) for name in Step._fields}
    for leaf in spec.obs:
        table[obs_column(leaf.name)] = observed(leaf, rows)
    for extra in spec.extras:
        inside = np.arange(math.prod(extra.shape)).reshape(extra.shape)
        table[extra.name] = np.add.outer(rows, inside)
    return table | valued(steps, rows) | {"action": acted(spec, rows), "version": rows}


def valued(steps: Sequence[Step], rows: Array) -> dict[str, Array]:
    """Returns an actor's values, exact in float32: some it did not give, and none of the dead."""
    ends = np.array([step.end for step in steps])
    taken = np.where((rows % 7 == 3) | (ends != End.RUNNING), np.nan, rows * 5 % 23 / 8 - 1)
    return {"taken": taken, "best": np.where(ends == End.TERMINATED, np.nan, rows * 3 % 17 / 4)}


def observed(leaf: Leaf, rows: Array) -> Array:
    """Returns what one frame of each row looks like: [*rows.shape, *leaf]."""
    shaped = rows.reshape(*rows.shape, *[1] * len(leaf.shape))
    inside = np.arange(int(np.prod(leaf.shape))).reshape(leaf.shape) * 3
    return (shaped + inside).astype(leaf.dtype)  # wraps where the dtype is small


def acted(spec: EnvSpec, rows: Array) -> Array:
    if spec.action.discrete:
        return rows % spec.action.n
    if spec.action.several:
        return np.asarray(rows)[..., None] % np.array(spec.action.sizes)
    return np.stack([rows / 512, -rows / 1024], axis=-1).astype(np.float32)


def feed(
    ring: Ring, chains: Chains, spec: EnvSpec, steps: Sequence[Step], sizes: Iterable[int] = ()
) -> list[int]:
    """Appends and links steps in pieces of the given sizes, then the rest; returns closed rows."""
    closed: list[int] = []
    at, pieces = 0, iter(sizes)
    while at < len(steps):
        piece = steps[at : at + min(next(pieces, ring.capacity), ring.capacity)]
        first = ring.committed
        ring.append(columns(spec, piece, first))
        closed += chains.link(ring, first, len(piece)).closed.tolist()
        at += len(piece)
    return closed


class Told:
    """The definition: rows as a list, of which the last `capacity` are remembered."""

    def __init__(self, steps: Sequence[Step], capacity: int):
        self.steps, self.oldest = list(steps), max(0, len(steps) - capacity)
        self.after: dict[int, int] = {}
        self.before: dict[int, int] = {}
        newest: dict[tuple[int, int], int] = {}
        for row, step in enumerate(self.steps):
            self._join(newest.get(step[:2]), row)
            newest[step[:2]] = row

    def _join(self, before: int | None, row: int) -> None:
        if before is None or self.steps[before].end is not End.RUNNING:
            return
        if self.steps[before][:4] == self.steps[row][:4]:  # one incarnation, one episode
            self.after[before], self.before[row] = row, before

    def rows(self) -> range:
        return range(self.oldest, len(self.steps))

    def walk(self, row: int, n: int) -> list[int]:
        """Returns up to n + 1 rows of one episode from `row` on."""
        found = [row]
        while len(found) <= n and found[-1] in self.after:
            found.append(self.after[found[-1]])
        return found

    def may_begin(self, row: int, window: int, stride: int = 1, burn_in: int = 0) -> bool:
        step = self.steps[row]
        if row < self.oldest or step.end is not End.RUNNING or step.t % stride:
            return False
        walked = self.walk(row, window)
        known = len(walked) == window + 1 or self.steps[walked[-1]].end is not End.RUNNING
        return known and (step.t == 0 or len(walked) - 1 > burn_in)

    def transition(self, row: int, n: int, gamma: float) -> tuple[float, float, int]:
        """Returns n-step reward, discount and the row that is bootstrapped from."""
        walked = self.walk(row, n)
        reward = sum(gamma**k * self.steps[r].reward for k, r in enumerate(walked[:-1]))
        died = self.steps[walked[-1]].end is End.TERMINATED
        return reward, 0.0 if died else gamma ** (len(walked) - 1), walked[-1]

    def td_error(self, row: int, n: int, gamma: float) -> float:
        """Returns the TD error by the values of the rows' actors, nan where one gave none."""
        reward, discount, last = self.transition(row, n, gamma)
        values = valued(self.steps, np.arange(len(self.steps)))
        outlook = discount * values["best"][last] if discount > 0 else 0.0
        return float(reward + outlook - values["taken"][row])

    def stack(self, row: int, depth: int) -> list[int] | None:
        """Returns the frames a policy saw, oldest first; None where one of them is gone."""
        frames = [row]
        while len(frames) < depth:
            first = frames[0]
            before = first if self.steps[first].t == 0 else self.before.get(first, -1)
            if before < self.oldest:
                return None
            frames.insert(0, before)
        return frames

    def seen(self, spec: EnvSpec, row: int) -> Any:
        """Returns the observation a policy saw at a row, frames along a leaf's first axis."""
        frames = self.stack(row, spec.frame_stack)
        assert frames is not None
        return spec.pack(
            {leaf.name: np.concatenate(observed(leaf, np.array(frames))) for leaf in spec.obs}
        )

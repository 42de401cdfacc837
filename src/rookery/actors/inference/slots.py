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

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rookery.algorithms import Acted
from rookery.config.schema import ActorConfig
from rookery.replay.shared_arrays import ArrayLayout, SharedFile, new_file
from rookery.replay.shared_memory import look, post
from rookery.runtime.timeouts import CLOCK
from rookery.types import Array, Arrays, EnvSpec, Floats, below

WORDS: dict[str, tuple[tuple[int, ...], str]] = {  # of a slot, each on a cache line of its own
    "asked": ((1,), "int64"),  # number of the last request
    "answered": ((1,), "int64"),  # number of the last request that was answered
    "request": ((5,), "int64"),  # size, seed, noise, values, has memory
    "epsilon": ((1,), "float64"),
    "answer": ((5,), "int64"),  # size, version, has values, has memory, which extras
    "waited_ns": ((1,), "int64"),
}
HEAD = ArrayLayout({"beat": ((1,), "int64"), "totals": ((3,), "int64")})  # of the server


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


def layout_of(spec: EnvSpec, memory: int, envs: int) -> ArrayLayout:
    """Returns name, shape and dtype of each array of a slot, for an actor with `envs` environments.

    A slot is the shared memory through which an actor requests actions from the inference server.
    `memory` is the size of the policy's recurrent state.
    """
    deep = spec.frame_stack
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for leaf in spec.obs:
        seen = (deep * leaf.shape[0], *leaf.shape[1:]) if deep > 1 else leaf.shape
        shapes[f"obs.{leaf.name}"] = (seen, leaf.dtype)
    shapes |= {"memory": ((memory,), "float32"), "remembered": ((memory,), "float32")}
    shapes["action"] = (spec.action.shape, spec.action.dtype)
    shapes |= {"taken": ((), "float32"), "best": ((), "float32")}
    shapes |= {f"extra.{extra.name}": (extra.shape, extra.dtype) for extra in spec.extras}
    arrays = {name: ((envs, *shape), dtype) for name, (shape, dtype) in shapes.items()}
    return ArrayLayout(WORDS | arrays)


class InferenceSlot:
    """Shared memory of one actor: its last action request, and the inference server's answer."""

    def __init__(self, arrays: Arrays):
        self._arrays = arrays
        self._asked, self._answered = arrays["asked"], arrays["answered"]
        self.waited_ns = arrays["waited_ns"]  # by this actor, for the server's answers
        self._leaves, self._extras = below("obs.", arrays), below("extra.", arrays)

    @property
    def asked(self) -> int:
        return look(self._asked, 0)

    @property
    def answered(self) -> bool:
        """Whether the inference server has answered the actor's last request."""
        return look(self._answered, 0) == look(self._asked, 0)

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
        flags = (size, question.seed, question.noise, question.values, remembers)
        self._arrays["request"][:] = flags
        self._arrays["epsilon"][0] = question.epsilon
        post(self._asked, 0, self.asked + 1)

    def question(self) -> InferenceRequest:
        """Returns the actor's last request for actions, as views of shared memory.

        The inference server calls it. The views are valid until the server writes its answer.
        """
        size, seed, noise, values, remembers = self._arrays["request"].tolist()
        return InferenceRequest(
            {name: leaf[:size] for name, leaf in self._leaves.items()},
            self._arrays["memory"][:size] if remembers else None,
            seed,
            float(self._arrays["epsilon"][0]),
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
        arrays["answer"][:] = size, version, valued, remembers, given
        post(self._answered, 0, number)

    def take(self) -> Acted:
        """Returns a copy of the inference server's answer, for the actor.

        The next answer overwrites this one in shared memory.
        """
        arrays = self._arrays
        size, version, valued, remembers, given = arrays["answer"].tolist()
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


class InferenceSlots(SharedFile):
    """Shared memory of central inference: one slot for each actor's requests and answers.

    It also holds the heartbeat and the totals of the inference server.
    """

    what = "shared memory of the inference server"

    def __init__(self, actor: ActorConfig, spec: EnvSpec, memory: int, *, fd: int | None = None):
        """Maps the slots of `fd`; without it, creates those of `actor.num` actors.

        `memory` is the size of the policy's recurrent state.
        """
        layout = layout_of(spec, memory, actor.envs)
        size = HEAD.size + actor.num * layout.size
        what = "the slots of the inference server"
        super().__init__(new_file(size, what=what) if fd is None else fd)
        self._head = HEAD.views(self.bytes)
        self._slots = [
            InferenceSlot(layout.views(self.bytes[first:]))
            for first in range(HEAD.size, size, layout.size)
        ]

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
        post(self._head["beat"], 0, time.clock_gettime_ns(CLOCK))

    @property
    def silence_s(self) -> float:
        """Seconds since the inference server's last heartbeat."""
        return (time.clock_gettime_ns(CLOCK) - look(self._head["beat"], 0)) / 1e9

    def count(self, questions: int, observations: int) -> None:
        """Adds one answered batch of requests and observations to the inference server's totals."""
        self._head["totals"] += questions, observations, 1

    @property
    def done(self) -> InferenceTotals:
        questions, observations, batches = self._head["totals"].tolist()
        waited_s = sum(look(slot.waited_ns, 0) for slot in self._slots) / 1e9
        return InferenceTotals(questions, observations, batches, waited_s)

    def close(self) -> None:
        super().close()
        self._slots.clear()
        self._head.clear()

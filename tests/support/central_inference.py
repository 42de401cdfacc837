"""Central inference in one process: the server, its slots, and what holds for any algorithm."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.actors.inference.inference_server import InferenceServer, InferenceSetup
from rookery.actors.inference.slots import InferenceRequest, InferenceSlots
from rookery.algorithms import Acted, Algorithm, build_algorithm, row_spec
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.engines.engine import copies
from rookery.envs.spaces import spec_of
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import arrays_of
from rookery.types import Array, EnvSpec, Leaf

ENVS, ACTORS = 4, 3
SEEN = spaces.Dict(
    {"a": spaces.Box(-1.0, 1.0, (3,), np.float32), "b": spaces.Box(0, 255, (6, 6, 3), np.uint8)}
)
MOST = {"b": 256}


def settings(**changes: Any) -> Config:
    base = {
        "run.mode": "sync",
        "actor.num": ACTORS,
        "actor.envs": ENVS,
        "actor.inference": "central",
        "net.hidden": [8],
        "net.memory": 6,
        "learner.device": "cpu",
    }
    return load(changes=base | changes)


class Service:
    """An inference server, the algorithm whose weights it has, and the slots of its actors.

    `most` has an upper bound of the whole numbers in each leaf of an observation.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, algorithm: Algorithm, most: Mapping[str, int]
    ):
        self.config, self.algorithm, self.most = config, algorithm, most
        self.spec = row_spec(spec, algorithm)
        self.weight_store = WeightStore(arrays_of(algorithm.acting))
        self.weight_store.publish(arrays_of(algorithm.acting))
        self.slots = InferenceSlots(config.actor, self.spec, algorithm.memory)
        self.inference_server = self.another()

    def another(self) -> InferenceServer:
        return InferenceServer(
            InferenceSetup(self.config, self.spec, *copies(self.slots.fd, self.weight_store.fd))
        )

    def answers(self, questions: dict[int, InferenceRequest]) -> dict[int, Acted]:
        """Asks all of it at once."""
        for seat, question in questions.items():
            self.slots[seat].ask(question)
        self.inference_server.work()
        return {seat: self.slots[seat].take() for seat in questions}

    def questions(self, **changes: Any) -> dict[int, InferenceRequest]:
        """Returns a question of each actor; the second one has fewer environments to ask for."""
        rng, found = np.random.default_rng(1), {}
        for seat in range(ACTORS):
            size = ENVS - (seat == 1)
            leaves = {leaf.name: self._imagined(leaf, size, rng) for leaf in self.spec.obs}
            memory = None
            if self.algorithm.memory:
                memory = rng.normal(size=(size, self.algorithm.memory)).astype(np.float32)
            epsilon = (0.0, 0.5, 1.0)[seat]
            asked = InferenceRequest(leaves, memory, 1_000 + seat, epsilon, True, True)
            found[seat] = asked._replace(**changes)
        return found

    def _imagined(self, leaf: Leaf, size: int, rng: np.random.Generator) -> Array:
        if leaf.dtype == "float32":
            return rng.normal(size=(size, *leaf.shape)).astype(np.float32)
        return rng.integers(0, self.most[leaf.name], (size, *leaf.shape), leaf.dtype)

    def close(self) -> None:
        self.inference_server.close()
        self.slots.close()
        self.weight_store.close()


@contextmanager
def service(
    changes: dict[str, Any], space: Any, seen: Any = SEEN, most: Mapping[str, int] = MOST
) -> Iterator[Service]:
    config, spec = settings(**changes), spec_of("here", seen, space)
    made = Service(config, spec, build_algorithm(config, spec), most)
    try:
        yield made
    finally:
        made.close()


def same(found: Acted, wanted: Acted) -> None:
    np.testing.assert_allclose(found.action, wanted.action, atol=1e-6)
    for one, other in zip(found[1:3] + found[4:5], wanted[1:3] + wanted[4:5], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5) if other is not None else None
        assert (one is None) == (other is None)
    assert found.extras.keys() == wanted.extras.keys()
    for name, extra in wanted.extras.items():
        np.testing.assert_allclose(found.extras[name], extra, atol=1e-5)


def answers_do_not_depend_on_others(made: Service) -> None:
    """Each actor gets the same answer whether others ask at the same time or not."""
    questions = made.questions()

    together = made.answers(questions)
    alone = {seat: made.answers({seat: one})[seat] for seat, one in questions.items()}

    for seat, acted in together.items():
        same(acted, alone[seat])
        assert acted.action.dtype == made.spec.action.dtype
        assert len(acted.action) == questions[seat].size


def central_is_as_greedy_as_local(made: Service) -> None:
    """Without noise the server chooses what the algorithm chooses in the actor's process."""
    questions = made.questions(noise=False, epsilon=0.0)

    together = made.answers(questions)

    for seat, asked in questions.items():
        obs = made.spec.pack(asked.leaves)
        rng = np.random.default_rng(0)
        same(
            together[seat],
            made.algorithm.act(obs, rng, noise=False, values=True, memory=asked.memory),
        )

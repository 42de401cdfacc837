"""Whether `greedy`, which is exported, chooses as `act` does without noise."""

from collections.abc import Callable

import numpy as np
import torch

from rookery.algorithms.algorithm import Algorithm
from rookery.networks.forward import tensors
from rookery.types import Obs

ROWS = 50


def agrees(algorithm: Algorithm, look: Callable[[np.random.Generator], Obs]) -> None:
    """`look` returns ROWS observations."""
    rng = np.random.default_rng(0)
    obs = look(rng)
    memory = None
    if algorithm.memory:
        memory = rng.normal(size=(ROWS, algorithm.memory)).astype(np.float32)
    algorithm.act(obs, rng, memory=memory)  # whatever noise there is stays behind

    wanted = algorithm.act(obs, rng, noise=False, memory=memory)
    algorithm.act(obs, rng, memory=memory)
    given = None if memory is None else torch.from_numpy(memory)
    with torch.inference_mode():
        found, after = algorithm.greedy(tensors(obs, torch.device("cpu")), given)

    assert found.shape == (ROWS, *algorithm.spec.action.shape)
    assert str(found.dtype).removeprefix("torch.") == algorithm.spec.action.dtype
    if algorithm.spec.action.continuous:
        np.testing.assert_allclose(found, wanted.action, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, wanted.action)
    if wanted.memory is not None:
        assert after is not None
        np.testing.assert_allclose(after, wanted.memory, atol=1e-6)

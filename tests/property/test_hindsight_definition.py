"""For all experience: hindsight looks at the rows that came after one in its episode, no others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from experience_strategies import ACTORS, CAPACITIES, ENVS, EXPERIENCE, SIZES
from rookery.replay.fold import Chains
from rookery.replay.hindsight import future
from rookery.replay.ring import Ring, schema_of
from sample_experience import VECTOR, Step, Told, feed


@given(EXPERIENCE, CAPACITIES, SIZES, st.floats(0.0, 1.0))
def test_the_future_of_a_row_is_the_rest_of_its_episode(
    steps: list[Step], capacity: int, sizes: list[int], noise: float
) -> None:
    ring = Ring.create(schema_of(VECTOR), capacity)
    chains = Chains(ACTORS * ENVS, ENVS, window=1, stride=1, capacity=capacity)
    feed(ring, chains, VECTOR, steps, sizes)
    plain = Told(steps, capacity)
    rows = np.array([row for row in plain.rows() if plain.may_begin(row, 1)], dtype=np.int64)

    found = future(ring, rows, np.full(rows.size, noise))

    ring.close()
    for row, later in zip(rows.tolist(), found.tolist(), strict=True):
        rest = plain.walk(row, len(steps))[1:]
        assert later == rest[min(int(noise * len(rest)), len(rest) - 1)]

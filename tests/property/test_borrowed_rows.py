"""For all experience, in either kind of ring: what is borrowed is what the definition says."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experience_strategies import CAPACITIES, ENVS, EXPERIENCE, GAMMA, SIZES, WINDOWS
from rookery.errors import ConfigError
from rookery.replay.fold import Chains
from rookery.replay.ring import Column, Ring, Schema, paired_schema, schema_of
from rookery.sharing.borrowed_rows import Lender, Returns, RowCopier
from rookery.sharing.strategies import BorrowPlan
from rookery.types import EnvSpec
from sample_experience import DIALS, MIXED, VECTOR, Step, Told, acted, feed, observed

ONLY = BorrowPlan(np.ones(1))
BATCH = 64


def copier(schema: Schema, *rings: Ring, seed: int = 0) -> RowCopier:
    leaves = [column for column in schema if column.name.partition(".")[0] == "obs"]
    action = next(column for column in schema if column.name == "action")
    return RowCopier(leaves, action, [Lender(str(k), r) for k, r in enumerate(rings)], seed=seed)


@pytest.mark.parametrize("spec", [VECTOR, DIALS, MIXED], ids=["vector", "dials", "mixed"])
@given(EXPERIENCE, CAPACITIES, SIZES, WINDOWS, st.integers(0, 9))
def test_loans_from_chains_equal_the_definition(
    spec: EnvSpec, steps: list[Step], capacity: int, sizes: list[int], n: int, seed: int
) -> None:
    with closing(Ring.create(schema_of(spec), capacity)) as ring:
        feed(ring, Chains(4, ENVS, window=1, stride=1, capacity=capacity), spec, steps, sizes)
        loan = copier(ring.schema, ring, seed=seed).take(BATCH, ONLY, BATCH, Returns(n, GAMMA))

    plain = Told(steps, capacity)
    may_begin = [row for row in plain.rows() if plain.may_begin(row, n)]
    if not may_begin:
        assert loan.filled == 0
        return
    leaf = spec.obs[0]
    first = loan.obs[leaf.name][: loan.filled].reshape(loan.filled, -1)[:, 0].astype(int)
    assert set(first) <= set(may_begin)  # observations tell which row they are
    for b, row in enumerate(first.tolist()):
        reward, discount, last = plain.transition(row, n, GAMMA)
        assert (loan.reward[b], loan.discount[b]) == (reward, discount)
        assert (loan.action[b] == acted(spec, np.array(row))).all()
        for part in spec.obs:
            assert (loan.obs[part.name][b] == observed(part, np.array(row))).all()
            assert (loan.next_obs[part.name][b] == observed(part, np.array(last))).all()


DONES = st.lists(st.sampled_from([(0.0, 0.0)] * 6 + [(1.0, 0.0), (1.0, 1.0), (np.nan, 0.0)]))


@given(DONES, st.integers(1, 3), st.integers(1, 30), WINDOWS)
def test_loans_from_pairs_equal_the_definition(
    ends: list[tuple[float, float]], envs: int, capacity: int, n: int
) -> None:
    schema = paired_schema({"": ((2,), "float32")}, ((), "int64"))
    count = len(ends)
    numbers = np.arange(count)
    with closing(Ring.create(schema, capacity, stride=envs)) as ring:
        for row in range(count):
            done, timeout = ends[row]
            ring.append(
                {
                    "obs": np.full((1, 2), row),
                    "action": np.array([row]),
                    "next_obs": np.full((1, 2), row + 0.5),
                    "reward": np.array([row / 4]),
                    "done": np.array([done]),
                    "timeout": np.array([timeout]),
                }
            )
        loan = copier(schema, ring).take(BATCH, ONLY, BATCH, Returns(n, GAMMA))
    expected = {}
    for row in numbers[max(0, count - capacity) :].tolist():
        total, factor, at = 0.0, 1.0, row
        for step in range(n):
            if step > 0 and at + envs >= count:  # the newest row of its environment
                expected[row] = (total, factor, at)
                break
            at = row + step * envs
            if np.isnan(ends[at][0]):
                break
            total += factor * at / 4
            factor *= GAMMA
            if ends[at][0]:
                expected[row] = (total, factor * ends[at][1], at)
                break
            if step == n - 1:
                expected[row] = (total, factor, at)
    rows = loan.action[: loan.filled].tolist()
    assert set(rows) <= set(expected)
    if 4 * len(expected) >= min(count, capacity) > 0:  # easily found
        assert rows
    for b, row in enumerate(rows):
        reward, discount, last = expected[row]
        assert (loan.reward[b], loan.discount[b]) == (reward, discount)
        assert loan.obs[""][b].tolist() == [row, row]
        assert loan.next_obs[""][b].tolist() == [last + 0.5, last + 0.5]


@given(st.floats(0, 40), st.integers(0, 1000))
def test_a_loan_has_the_next_lower_or_higher_number_of_rows(rows: float, seed: int) -> None:
    with closing(_full()) as ring:
        loan = copier(ring.schema, ring, seed=seed).take(rows, ONLY, 32)
    assert loan.filled in {min(32, int(rows)), min(32, int(rows) + 1)}


def test_rewards_are_scaled_and_cut_before_they_are_summed() -> None:
    with closing(_full(reward=10.0)) as ring:
        returns = Returns(n=3, gamma=0.5, scale=0.5, clip=2.0)
        loan = copier(ring.schema, ring).take(8, ONLY, 8, returns)
    assert set(loan.reward[: loan.filled]) == {2.0 * 1.75}


def test_a_ring_with_another_observation_is_refused_by_name() -> None:
    with closing(_full()) as ring, pytest.raises(ConfigError, match=r"0 has obs \(2,\) float32"):
        RowCopier(
            [Column("obs", (3,), "float32")],
            Column("action", (), "int64"),
            [Lender("0", ring)],
            seed=0,
        )


def _full(reward: float = 1.0) -> Ring:
    ring = Ring.create(paired_schema({"": ((2,), "float32")}, ((), "int64")), 20)
    ring.append({"reward": np.full(20, reward), "obs": np.zeros((20, 2))})
    return ring


WRITER = """
import sys
import numpy as np
from pathlib import Path
from rookery.replay.ring import Ring
ring = Ring.open(Path(sys.argv[1]), writable=True)
print("ready", flush=True)
while True:
    rows = np.arange(ring.committed, ring.committed + 7)
    wide = np.repeat(rows[:, None], 64, axis=1)
    ring.append({"obs": wide, "next_obs": wide + 0.5, "action": rows, "reward": rows % 1000})
"""


def test_a_row_that_is_being_overwritten_is_never_lent(tmp_path: Path) -> None:
    schema = paired_schema({"": ((64,), "float64")}, ((), "int64"))
    ring = Ring.create(schema, 64, directory=tmp_path, name="a.ring")
    with closing(ring):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "a.ring")], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            lender = copier(schema, ring)
            drawn = 0
            while drawn < 20_000 or lender.counts.overwritten.sum() == 0:
                loan = lender.take(64, ONLY, 64)
                rows = loan.action[: loan.filled]
                drawn += rows.size
                assert (loan.obs[""][: loan.filled] == rows[:, None]).all()
                assert (loan.next_obs[""][: loan.filled] == rows[:, None] + 0.5).all()
                assert (loan.reward[: loan.filled] == rows % 1000).all()
        finally:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()

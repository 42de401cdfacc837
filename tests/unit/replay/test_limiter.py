"""The limiter: how much is learned for how much arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import ProtocolError
from rookery.replay.limiter import Limiter


def limiter(*, warmup: int = 0, ratio: float = 4.0, batch: int = 8, slack: int = 100) -> Limiter:
    return Limiter(warmup=warmup, samples_per_insert=ratio, batch=batch, slack=slack)


@pytest.mark.parametrize(
    ("warmup", "inserts", "inserted", "ready"),
    [
        (0, [], 0, False),
        (0, [1], 1, False),  # 4 draws allowed, 8 wanted
        (0, [2], 2, True),
        (10, [10], 0, False),  # the warm-up demands no learning
        (10, [11], 1, False),
        (10, [12], 2, True),
        (10, [4, 4, 4], 2, True),  # however it arrives
        (10, [9, 1, 0, 2], 2, True),
    ],
)
def test_learning_starts_after_the_warm_up(
    warmup: int, inserts: list[int], inserted: int, ready: bool
) -> None:
    limit = limiter(warmup=warmup)

    for rows in inserts:
        limit.insert(rows)

    assert (limit.inserted, limit.stored) == (inserted, sum(inserts))
    assert limit.ready() is ready


@pytest.mark.parametrize(
    ("ratio", "batch", "rows", "batches"),
    [
        (1.0, 1, 10, 10),
        (4.0, 8, 10, 5),
        (0.25, 64, 1000, 3),  # 250 draws: three whole batches
        (8.0, 64, 7, 0),
        (8.0, 64, 8, 1),
        (0.1, 1, 9, 0),
        (0.1, 1, 10, 1),
    ],
)
def test_as_many_batches_are_learned_as_rows_pay_for(
    ratio: float, batch: int, rows: int, batches: int
) -> None:
    limit = limiter(ratio=ratio, batch=batch)
    limit.insert(rows)

    learned = 0
    while limit.ready():
        limit.sample(batch)
        learned += 1

    assert learned == batches


def test_actors_wait_once_the_learner_is_too_far_behind() -> None:
    limit = limiter(ratio=4.0, batch=8, slack=10)
    limit.insert(10)
    assert limit.may_insert()
    limit.insert(1)
    assert not limit.may_insert()  # eleven rows ahead

    limit.sample(8)
    assert limit.may_insert()


@pytest.mark.parametrize("rows", [0, -3])
def test_an_empty_batch_is_not_counted(rows: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {rows}"):
        limiter().sample(rows)


def test_the_ratio_is_draws_for_each_row() -> None:
    limit = limiter(warmup=5)
    assert limit.ratio == 0.0

    limit.insert(9)
    limit.sample(8)

    assert limit.ratio == 2.0


def test_a_restored_limiter_goes_on_where_it_was() -> None:
    limit, again = limiter(warmup=5), limiter(warmup=5)
    limit.insert(3)
    limit.insert(9)
    limit.sample(8)

    again.restore(limit.state())

    assert again.state() == limit.state() == {"stored": 12, "inserted": 7, "drawn": 8}
    assert (again.ready(), again.may_insert()) == (limit.ready(), limit.may_insert())


RATIOS = st.one_of(st.floats(0.01, 64.0), st.sampled_from([0.1, 1 / 3, 1.0, 32.0]))


@given(
    RATIOS,
    st.integers(1, 64),
    st.integers(0, 50),
    st.integers(0, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60),
)
def test_samples_never_exceed_the_limit_and_there_is_no_deadlock(
    ratio: float, batch: int, warmup: int, slack: int, moves: list[tuple[bool, int]]
) -> None:
    limit = limiter(warmup=warmup, ratio=ratio, batch=batch, slack=slack)
    for learn, rows in moves:
        if learn and limit.ready():
            limit.sample(batch)
        elif limit.may_insert():
            limit.insert(rows)

        assert limit.drawn <= ratio * limit.inserted
        assert limit.ready() or limit.may_insert()
        assert limit.inserted == max(0, limit.stored - warmup)


@given(RATIOS, st.integers(1, 64), st.integers(0, 50), st.integers(0, 200), st.integers(0, 3))
def test_as_many_rows_as_are_missing_let_it_learn(
    ratio: float, batch: int, warmup: int, rows: int, draws: int
) -> None:
    limit = limiter(warmup=warmup, ratio=ratio, batch=batch)
    limit.insert(rows)
    for _ in range(draws if limit.ready() else 0):
        limit.sample(batch)
    waited = not limit.ready()
    missing = limit.missing

    limit.insert(missing - 1)
    assert not (waited and limit.ready())
    limit.insert(2)  # one more than missing: shares are rounded
    assert limit.ready()

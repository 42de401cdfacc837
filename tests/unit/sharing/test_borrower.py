"""The borrower: each strategy's distribution against its definition, and what goes wrong."""

import os

import numpy as np
import pytest

from eventually import eventually
from pool_buffers import OBS, SCHEMA, TERMS, borrower, fill, join, pool
from rookery.config.schema import Strategy
from rookery.errors import ConfigError
from rookery.replay.ring import Ring
from rookery.sharing import borrower as borrowing

BATCH = 256


@pytest.fixture
def three(tmp_path):
    """A pool of three buffers with 100, 300 and 600 rows, marked 0, 1, 2; the first is our own."""
    registry = pool(tmp_path)
    members = [join(registry, name) for name in ("own", "b", "c")]
    for mark, ((_, ring), rows) in enumerate(zip(members, (100, 300, 600), strict=True)):
        fill(ring, rows, mark)
    yield registry, *members[0]
    registry.stop()


def drawn(registry, buffer_id, ring, strategy, ratio, batches=400):
    """Returns the marks and row numbers of everything that came from the pool, and how much."""
    member = borrower(registry, buffer_id, ring, strategy, ratio)
    marks, rows, counts = [], [], []
    for _ in range(batches):
        loan = member.borrow(BATCH)
        counts.append(loan.filled)
        marks.append(loan.action[: loan.filled, 0])
        rows.append(loan.reward[: loan.filled])
    return np.concatenate(marks), np.concatenate(rows), np.array(counts), member


def shares(marks):
    return np.array([(marks == mark).mean() for mark in range(3)])


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.SELF_HEAVY, [0, 1 / 2, 1 / 2]),
        (Strategy.UNIFORM, [1 / 3, 1 / 3, 1 / 3]),
        (Strategy.WEIGHTED, [0.1, 0.3, 0.6]),
        (Strategy.NEWEST, [0.1, 0.3, 0.6]),
    ],
)
def test_the_pool_is_what_the_strategy_says(three, strategy, expected):
    marks, _, _, _ = drawn(*three, strategy, 0.5)
    spread = 5 * np.sqrt(0.25 / marks.size)  # five deviations of a share
    assert np.abs(shares(marks) - expected).max() < spread


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.001, 1.0])
def test_the_ratio_is_kept_over_time_and_never_off_by_a_row(three, ratio):
    _, _, counts, member = drawn(*three, Strategy.SELF_HEAVY, ratio, batches=2000)
    wanted = ratio * BATCH
    assert set(counts) <= {int(wanted), int(wanted) + 1}
    assert abs(counts.mean() - wanted) < 5 * 0.5 / np.sqrt(counts.size)
    stats = member.counts.stats()
    assert stats["distributed_samples"] == counts.sum()
    assert stats["total_samples"] == BATCH * counts.size


def test_rows_of_a_buffer_are_drawn_uniformly(three):
    marks, rows, _, _ = drawn(*three, Strategy.SELF_HEAVY, 1.0)
    seen = np.bincount(rows[marks == 2].astype(int), minlength=600)
    expected = seen.sum() / 600
    chi_squared = ((seen - expected) ** 2 / expected).sum()
    assert chi_squared < 600 + 6 * np.sqrt(2 * 600)


def test_newest_takes_the_last_fifth_of_every_buffer(three):
    marks, rows, _, _ = drawn(*three, Strategy.NEWEST, 1.0)
    oldest = [rows[marks == mark].min() for mark in range(3)]
    assert oldest == [80, 240, 480]


@pytest.mark.parametrize(
    ("strategy", "ratio"), [(Strategy.LOCAL_ONLY, 0.5), (Strategy.SELF_HEAVY, 0.0)]
)
def test_local_only_and_a_ratio_of_nothing_touch_nothing(three, strategy, ratio):
    registry, buffer_id, ring = three
    member = borrower(registry, buffer_id, ring, strategy, ratio)
    assert member.borrow(BATCH) is None
    assert member.counts.stats()["num_shared_buffers"] == 0
    assert member.counts.stats()["local_samples"] == BATCH


def test_own_rows_of_the_pool_are_not_counted_as_those_of_others(three):
    marks, _, _, member = drawn(*three, Strategy.UNIFORM, 1.0)
    stats = member.counts.stats()
    assert stats["distributed_samples"] == (marks != 0).sum()
    assert stats["local_samples"] == (marks == 0).sum()
    assert sum(stats["by_peer"].values()) == stats["distributed_samples"]


def test_an_empty_pool_is_made_up_for_and_counted(tmp_path):
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "own")
    fill(ring, 10)
    member = borrower(registry, buffer_id, ring, ratio=0.25)
    assert member.borrow(BATCH) is None
    assert member.counts.stats()["short_samples"] == 64


def test_a_buffer_that_joins_is_found_at_the_next_look(tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "own")
    member = borrower(registry, buffer_id, ring)
    assert member.borrow(BATCH) is None
    fill(join(registry, "b")[1], 50, 1)
    assert member.borrow(BATCH).filled > 0


def test_a_buffer_that_joins_within_a_tick_of_the_folders_clock_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "own")
    member = borrower(registry, buffer_id, ring)
    member.refresh()
    before = registry.path.stat().st_mtime_ns
    fill(join(registry, "b")[1], 50, 1)
    os.utime(registry.path, ns=(before, before))
    assert member.borrow(BATCH) is not None


def test_a_folder_that_has_not_changed_is_not_listed_again(three, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry, buffer_id, ring = three
    os.utime(registry.path, (1e9, 1e9))
    member = borrower(registry, buffer_id, ring)
    member.borrow(BATCH)
    monkeypatch.setattr(registry, "others", None)
    assert member.borrow(BATCH) is not None


def test_a_buffer_that_leaves_is_let_go_at_the_next_look(three, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry, buffer_id, ring = three
    member = borrower(registry, buffer_id, ring, ratio=1.0)
    member.borrow(BATCH)
    gone = next(listed.buffer_id for listed in registry.list() if listed.run_id == "c")
    registry.deregister_buffer(gone)
    loan = member.borrow(BATCH)
    assert set(loan.action[: loan.filled, 0]) == {1}
    assert member.counts.stats()["num_shared_buffers"] == 1


def test_a_silent_buffer_is_ignored_until_its_next_heartbeat(tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry = pool(tmp_path, stale_s=0.05)
    buffer_id, ring = join(registry, "own")
    _, other = join(registry, "b")
    fill(other, 50, 1)
    member = borrower(registry, buffer_id, ring)
    assert member.borrow(BATCH) is not None
    assert eventually(lambda: member.borrow(BATCH) is None, 5.0)
    other.beat()
    assert member.borrow(BATCH) is not None


def test_a_pool_that_goes_is_mentioned_once_and_the_run_goes_on(three, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry, buffer_id, ring = three
    member = borrower(registry, buffer_id, ring)
    member.borrow(BATCH)
    os.rename(registry.path, registry.path.with_name("elsewhere"))
    with pytest.warns(UserWarning, match="continues with its own rows"):
        assert member.borrow(BATCH) is None
    assert member.borrow(BATCH) is None
    assert member.counts.stats()["short_samples"] == 2 * round(0.2 * BATCH)


def test_a_pool_that_comes_back_is_borrowed_from_again(three, monkeypatch):
    monkeypatch.setattr(borrowing, "REFRESH_S", 0.0)
    registry, buffer_id, ring = three
    os.utime(registry.path, (1e9, 1e9))
    member = borrower(registry, buffer_id, ring)
    away = registry.path.with_name("away")
    os.rename(registry.path, away)
    with pytest.warns(UserWarning, match="own rows"):
        assert member.borrow(BATCH) is None
    os.rename(away, registry.path)
    assert member.borrow(BATCH) is not None


def test_own_rows_that_are_not_finite_are_left_out_and_no_buffer_is_excluded(three):
    registry, buffer_id, ring = three
    ring.columns["reward"][:50] = np.nan
    member = borrower(registry, buffer_id, ring, Strategy.UNIFORM, 1.0)
    for _ in range(3):
        loan = member.borrow(BATCH)
        assert loan.invalid > 0
        assert np.isfinite(loan.reward[: loan.filled]).all()
    assert member.counts.stats()["num_shared_buffers"] == 2
    assert member.counts.stats()["refused"] == {}


@pytest.mark.parametrize(
    ("column", "poison"),
    [
        ("reward", np.nan),
        ("reward", np.inf),
        ("reward", 1e30),
        ("obs", np.nan),
        ("next_obs", np.inf),
    ],
)
def test_a_buffer_with_rows_that_are_not_finite_is_excluded(three, column, poison):
    registry, buffer_id, ring = three
    bad = next(listed.buffer_id for listed in registry.list() if listed.run_id == "c")
    writable = Ring.open(registry.path / f"{bad}.ring", writable=True)
    writable.columns[column][:600] = poison
    member = borrower(registry, buffer_id, ring, ratio=1.0)
    with pytest.warns(UserWarning, match="not finite"):
        loan = member.borrow(BATCH)
    assert set(loan.action[: loan.filled, 0]) == {1}
    assert list(member.counts.stats()["refused"]) == [bad]
    assert member.borrow(BATCH).filled == BATCH


def test_buffers_of_one_family_do_not_borrow_from_each_other(tmp_path):
    registry = pool(tmp_path)
    ids = [registry.register_buffer(f"part{i}", "DQN", family="run") for i in range(2)]
    rings = [registry.attach(buffer_id, TERMS, SCHEMA, 100) for buffer_id in ids]
    fill(rings[1], 50)
    assert borrower(registry, ids[0], rings[0]).borrow(BATCH) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (5,)}, r"obs \(3,\) float32, this run has obs \(5,\)"),
        ({"dtype": "float64"}, r"float32, this run has .*float64"),
        ({"name": "obs.place"}, r"no such column, this run has obs\.place"),
    ],
)
def test_a_ring_with_other_columns_is_refused_by_name(three, changes, message):
    registry, buffer_id, ring = three
    with pytest.raises(ConfigError, match=message):
        borrower(registry, buffer_id, ring, leaves=(OBS._replace(**changes),))


def test_a_ratio_beyond_one_is_refused(three):
    with pytest.raises(ConfigError, match="0 to 1"):
        borrower(*three, ratio=1.2)


def test_a_run_that_needs_sequences_borrows_no_single_transitions(three):
    registry, buffer_id, ring = three
    member = borrower(registry, buffer_id, ring, chained=True)
    with pytest.warns(UserWarning, match="single transitions"):
        assert member.borrow(BATCH) is None

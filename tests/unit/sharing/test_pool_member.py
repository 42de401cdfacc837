"""A run of ours in a pool: what its batches hold, and what of it is ranked."""

from pathlib import Path

import numpy as np
import pytest

from pool_members import member, pool
from rookery.config.schema import Config, Draw, ReplayConfig, SharingConfig, Storage
from rookery.errors import ConfigError
from rookery.replay.ring import schema_of
from rookery.sharing.mixed_batches import BORROWED
from rookery.sharing.pool_member import PoolMember
from rookery.sharing.strategies import AssignedWeights
from rookery.types import EnvSpec
from sample_experience import IMAGE, VECTOR


def test_a_batch_holds_own_rows_and_those_of_the_pool(tmp_path: Path) -> None:
    own, other = member(tmp_path, "own"), member(tmp_path, "other")
    replay, _ = pool(own), pool(other)
    batch = own.sample(replay, 64, 1.0)
    foreign = batch.rows == BORROWED
    assert (batch.rows.size, foreign.sum()) == (64, 16)
    assert batch.obs.shape == (64, 2)
    assert batch.weight[foreign] == pytest.approx(batch.weight[~foreign].mean())
    stats = own.stats()
    assert (stats["sharing/foreign_rows"], stats["sharing/local_rows"]) == (16, 48)


def test_rows_of_the_pool_are_never_ranked(tmp_path: Path) -> None:
    own, other = member(tmp_path, "own", ratio=1.0), member(tmp_path, "other")
    replay, _ = pool(own), pool(other)
    before = replay.sampler.state()["leaves"]
    batch = own.sample(replay, 64, 1.0)
    own.update_priorities(replay, batch.rows, np.full(64, 9.0))
    assert (replay.sampler.state()["leaves"] == before).all()


def test_own_rows_are_ranked_by_their_own_errors(tmp_path: Path) -> None:
    own, other = member(tmp_path, "own"), member(tmp_path, "other")
    replay, _ = pool(own), pool(other)
    batch = own.sample(replay, 8, 1.0)
    own.update_priorities(replay, batch.rows, np.arange(8.0))
    leaves, alpha = replay.sampler.state()["leaves"], replay.config.alpha
    ranked = {int(row): k for k, row in enumerate(batch.rows) if row != BORROWED}  # the last counts
    for row, error in ranked.items():
        assert leaves[row % 300] == pytest.approx((error + 1e-6) ** alpha)


@pytest.mark.parametrize("draw", Draw)
def test_without_a_share_batches_are_those_of_a_run_alone(tmp_path: Path, draw: Draw) -> None:
    own, other = member(tmp_path, "own", ratio=0.0), member(tmp_path, "other")
    replay, _ = pool(own, draw), pool(other)
    twin = pool(member(tmp_path, "twin"), draw)
    for _ in range(20):
        mine, plain = own.sample(replay, 32, 0.5), twin.sample(32, beta=0.5)
        assert all((a == b).all() for a, b in zip(mine[:7], plain[:7], strict=True))


def test_stacks_of_frames_are_borrowed_too(tmp_path: Path) -> None:
    own, other = member(tmp_path, "own", IMAGE), member(tmp_path, "other", IMAGE)
    replay, lent = pool(own), pool(other)
    batch = own.sample(replay, 64, 1.0)
    assert batch.obs.shape == lent.sample(64).obs.shape
    assert own.stats()["sharing/foreign_rows"] == (batch.rows == BORROWED).sum() == 16


def test_runs_of_different_environments_are_refused(tmp_path: Path) -> None:
    pool(member(tmp_path, "own"))
    with pytest.raises(ConfigError, match="observation obs"):
        pool(member(tmp_path, "other", IMAGE))


def test_the_shards_of_a_run_are_one_buffer_to_it(tmp_path: Path) -> None:
    own = member(tmp_path, "own")
    rings = [own.ring(place, schema_of(VECTOR), 300) for place in range(2)]
    assert len(own.registry.list()) == 2
    own.borrower.refresh()
    assert own.stats()["sharing/peers"] == 0
    assert len(rings) == len(own.borrower.own)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE])
def test_what_is_fetched_comes_from_whom_it_was_told(tmp_path: Path, spec: EnvSpec) -> None:
    own, other = member(tmp_path, "own", spec), member(tmp_path, "other", spec)
    pool(own), pool(other)
    assert own.fetch(0, AssignedWeights({}, 1.0)) is None
    mine, theirs = own.borrower.filled
    for weights, foreign in (({mine: 1.0}, {False}), ({theirs: 2.0}, {True}), ({}, set())):
        lent = own.fetch(8, AssignedWeights({"gone": 5.0, **weights}, 1.0))
        assert (set(lent.foreign.tolist()) if lent else set()) == foreign
        assert lent is None or (lent.batch.rows.tolist(), lent.foreign.size) == ([BORROWED] * 8, 8)


def test_members_of_one_family_do_not_borrow_from_each_other(tmp_path: Path) -> None:
    sharing = SharingConfig(pool=str(tmp_path / "pool"))
    parts = [
        PoolMember(Config(sharing=sharing), VECTOR, "run", family="us", index=i) for i in (0, 1)
    ]
    rings = [part.ring(place, schema_of(VECTOR), 300) for place, part in enumerate(parts)]
    parts[0].borrower.refresh()
    assert len(parts[0].borrower.filled) == 1
    assert len(rings) == len(parts[0].registry.list()) == 2


def test_a_member_that_leaves_removes_its_rings(tmp_path: Path) -> None:
    own = member(tmp_path, "own")
    pool(own)
    own.close()
    assert not (tmp_path / "pool").exists()


def test_replay_on_disk_is_refused_in_a_pool(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replay is in the pool's folder: move that to the disk"):
        Config(sharing=SharingConfig(pool=str(tmp_path)), replay=ReplayConfig(storage=Storage.DISK))

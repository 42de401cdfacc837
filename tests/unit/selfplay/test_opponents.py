"""The opponents of a run: snapshots, records, announcements, and what a checkpoint keeps."""

import numpy as np
import pytest

from rookery.config.schema import Drop, Part, SelfplayConfig
from rookery.envs.turn_based.game import Who
from rookery.errors import CheckpointError, ConfigError
from rookery.selfplay.opponents import (
    GRACE,
    LEAGUE_CHOICES,
    MAX_LEAGUE,
    ODDS,
    WHO,
    OpponentManager,
    blank,
)
from rookery.selfplay.snapshot_files import LeagueSnapshot, SnapshotStore, about, claim, snapshots


def weights(value):
    return {"layer.weight": np.full((2, 3), value, dtype=np.float32)}


def manager(folder, **settings):
    settings = {"opponents": {"past": 1.0}, "snapshot_period": 10, **settings}
    return OpponentManager(SelfplayConfig(**settings), SnapshotStore(folder / "opponents"))


def filled(folder, versions, **settings):
    own = manager(folder, **settings)
    for version in versions:
        own.keep(version, weights(version), learner_steps=10 * version, env_steps=0)
    return own


def test_a_snapshot_is_due_every_so_many_learner_steps(tmp_path):
    own = manager(tmp_path)

    assert [step for step in range(41) if own.due(step)] == [10, 20, 30, 40]


def test_a_snapshot_is_a_file_with_its_weights_and_where_it_was_taken(tmp_path):
    own = filled(tmp_path, [3])
    ((version, path),) = snapshots(tmp_path / "opponents")

    assert version == 3
    assert about(path) == {"version": 3, "learner_steps": 30, "env_steps": 0}
    np.testing.assert_array_equal(own.store.weights(3)["layer.weight"], weights(3)["layer.weight"])


@pytest.mark.parametrize(
    ("drop", "left"),
    [(Drop.OLDEST, [4, 5, 6]), (Drop.SPREAD, [1, 3, 6]), (Drop.WEAKEST, [1, 2, 6])],
)
def test_no_more_are_kept_than_asked_for(tmp_path, drop, left):
    """Those spread out: the first, the newest, and one between them."""
    own = manager(tmp_path, keep=3, drop=drop)
    for version in range(1, 7):
        own.record(version, 0.0 if version < 3 else 1.0)  # the first two always beat us
        own.keep(version, weights(version), learner_steps=version, env_steps=0)

    assert own.snapshots == left


def test_what_a_killed_run_had_not_finished_writing_goes_when_it_comes_back(tmp_path):
    own = filled(tmp_path, [3])
    left = own.store.folder / "v000000004.part"
    left.write_bytes(b"half")

    assert manager(tmp_path).store.versions() == [3]
    assert not left.exists()


def test_one_that_was_dropped_stays_readable_for_a_while(tmp_path):
    """A game against it may still be on."""
    own = filled(tmp_path, range(1, 3 + GRACE), keep=2, drop=Drop.OLDEST)
    own.record(1, 0.5)
    assert own.store.weights(1)

    own.keep(3 + GRACE, weights(0), learner_steps=40, env_steps=0)

    with pytest.raises(CheckpointError, match="cannot be read"):
        own.store.weights(1)
    assert 1 not in own.records


def test_a_win_rate_begins_at_a_half_and_forgets_old_games(tmp_path):
    own = manager(tmp_path, memory=10)
    assert own.rate(5) == 0.5
    for points in [0.0] * 50 + [1.0] * 10:
        own.record(5, points)

    assert own.rate(5) == pytest.approx(10.5 / 11)
    assert own.games == 60


def test_an_announcement_always_has_the_same_size(tmp_path):
    own = filled(tmp_path, range(1, 30), keep=5, opponents={"past": 1, "latest": 1})
    said = own.announcement()

    assert {k: v.shape for k, v in said.items()} == {
        k: v.shape for k, v in blank(own.config).items()
    }
    assert said[ODDS].sum() == pytest.approx(1.0)
    assert set(said[WHO][said[ODDS] > 0]) == {Who.LATEST, *own.snapshots}


def test_only_the_newest_are_chosen_among_where_so_asked(tmp_path):
    own = filled(tmp_path, range(1, 9), newest=2)

    assert [rival.who for rival in own.rivals()] == [7, 8]


def test_a_checkpoint_brings_back_records_and_the_files_that_are_gone(tmp_path):
    own = filled(tmp_path, [1, 2, 3], keep=2, drop=Drop.OLDEST)
    own.record(2, 1.0)
    rate, (numbers, arrays) = own.rate(2), own.state()
    for version in range(4, 10 + GRACE):  # a run that went on, and is resumed from before that
        own.keep(version, weights(version), learner_steps=version, env_steps=0)
    again = manager(tmp_path, keep=2, drop=Drop.OLDEST)
    again.restore(numbers, arrays)

    assert (again.snapshots, again.dropped, again.rate(2)) == ([2, 3], [1], rate)
    assert again.store.versions() == [1, 2, 3]
    np.testing.assert_array_equal(
        again.store.weights(2)["layer.weight"], weights(2)["layer.weight"]
    )


class TestLeague:
    def member(self, folder, tag, part=Part.MAIN):
        config = SelfplayConfig(opponents={"past": 1.0}, league=True, part=part)
        store = SnapshotStore(folder / f"run-{tag}", folder / "league", tag, part)
        return OpponentManager(config, store)

    def test_a_main_run_meets_its_own_past_and_all_other_runs(self, tmp_path):
        first, second = self.member(tmp_path, 1), self.member(tmp_path, 2, Part.EXPLOITER)
        second.keep(5, weights(5), learner_steps=1, env_steps=0)
        first.keep(7, weights(7), learner_steps=1, env_steps=0)

        assert [rival.who for rival in first.rivals()] == [7, 2 << 40 | 5]
        assert first.store.weights(2 << 40 | 5)["layer.weight"][0, 0] == 5

    def test_an_exploiter_meets_the_newest_of_each_main_run_alone(self, tmp_path):
        main, other = self.member(tmp_path, 1), self.member(tmp_path, 2, Part.EXPLOITER)
        for version in (3, 4):
            main.keep(version, weights(version), learner_steps=1, env_steps=0)
        self.member(tmp_path, 3, Part.EXPLOITER).keep(9, weights(9), learner_steps=1, env_steps=0)
        other.keep(5, weights(5), learner_steps=1, env_steps=0)

        assert [rival.who for rival in other.rivals()] == [1 << 40 | 4]

    def test_what_a_run_drops_is_gone_from_the_league(self, tmp_path):
        own = self.member(tmp_path, 1)
        own.keep(3, weights(3), learner_steps=1, env_steps=0)
        own.store.drop(3)

        assert self.member(tmp_path, 2).store.league_snapshots() == []

    def test_one_that_its_owner_drops_can_still_be_played_against(self, tmp_path):
        own, other = self.member(tmp_path, 1), self.member(tmp_path, 2)
        other.keep(5, weights(5), learner_steps=1, env_steps=0)
        own.keep(7, weights(7), learner_steps=1, env_steps=0)
        other.store.drop(5)

        assert own.store.weights(2 << 40 | 5)["layer.weight"][0, 0] == 5

    def test_copies_of_those_met_long_ago_are_let_go(self, tmp_path):
        own, other = self.member(tmp_path, 1, Part.EXPLOITER), self.member(tmp_path, 2)
        for version in range(1, 4 + GRACE):
            other.keep(version, weights(version), learner_steps=1, env_steps=0)
            own.keep(version, weights(version), learner_steps=1, env_steps=0)

        newest = range(3, 4 + GRACE)
        assert (
            own.store.league_copies()
            == own.league_copies
            == [2 << 40 | version for version in newest]
        )

    def test_a_snapshot_of_another_network_is_not_met(self, tmp_path):
        own, other = self.member(tmp_path, 1), self.member(tmp_path, 2)
        other.keep(5, {"layer.weight": np.zeros((4, 4))}, learner_steps=1, env_steps=0)
        own.keep(7, weights(7), learner_steps=1, env_steps=0)

        assert own.league_rivals == own.store.league_copies() == []

    def test_what_is_no_snapshot_is_left_alone(self, tmp_path):
        own = self.member(tmp_path, 1)
        (tmp_path / "league").mkdir(exist_ok=True)
        (tmp_path / "league" / "main-2-v000000003.safetensors").write_bytes(b"half of one")
        own.keep(7, weights(7), learner_steps=1, env_steps=0)

        assert own.league_rivals == []

    def test_where_there_are_too_many_each_run_has_its_newest_in(self, tmp_path):
        found = [LeagueSnapshot(tag << 40 | v, Part.MAIN) for tag in (1, 2) for v in range(1, 101)]
        chosen = LEAGUE_CHOICES[Part.MAIN](found)

        half = MAX_LEAGUE // 2
        assert [one.who for one in chosen] == [
            tag << 40 | v for tag in (1, 2) for v in range(101 - half, 101)
        ]

    def test_a_checkpoint_has_those_of_others_too(self, tmp_path):
        own, other = self.member(tmp_path, 1), self.member(tmp_path, 2)
        other.keep(5, weights(5), learner_steps=50, env_steps=3)
        own.keep(7, weights(7), learner_steps=1, env_steps=0)
        numbers, arrays = own.state()
        own.store.drop(2 << 40 | 5)
        again = self.member(tmp_path, 1)
        again.restore(numbers, arrays)

        assert again.league_rivals == [2 << 40 | 5]
        assert again.store.weights(2 << 40 | 5)["layer.weight"][0, 0] == 5
        assert again.store.about(2 << 40 | 5)["learner_steps"] == 50

    def test_a_run_goes_on_alone_where_the_pool_is_gone(self, tmp_path):
        own = self.member(tmp_path / "pool", 1)
        own.store.league = tmp_path / "nowhere" / "league"
        own.keep(7, weights(7), learner_steps=1, env_steps=0)

        assert [rival.who for rival in own.rivals()] == [7]

    def test_win_rates_against_the_league_are_told_apart(self, tmp_path):
        own, other = self.member(tmp_path, 1), self.member(tmp_path, 2)
        other.keep(5, weights(5), learner_steps=1, env_steps=0)
        own.keep(7, weights(7), learner_steps=1, env_steps=0)
        own.record(7, 1.0)
        for _ in range(3):
            own.record(2 << 40 | 5, 0.0)

        assert own.stats()["selfplay/win_rate_league"] == 0.5 / 4
        assert own.stats()["selfplay/win_rate_past"] == 1.5 / 2

    def test_every_role_meets_an_opponent(self):
        assert set(LEAGUE_CHOICES) == set(Part)

    def test_a_tag_is_one_runs_alone_and_the_same_when_it_comes_back(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "rookery.selfplay.snapshot_files.TAGS", 4
        )  # three tags: they would collide
        names = ("runs/a", "runs/b", "elsewhere/a")
        tags = [claim(tmp_path, name) for name in names]

        assert sorted(tags) == [1, 2, 3]
        assert [claim(tmp_path, name) for name in names] == tags
        with pytest.raises(ConfigError, match="start a new pool"):
            claim(tmp_path, "one/more")

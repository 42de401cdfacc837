"""Samplers: who is drawn, how often, with which weight, and who never is."""

import numpy as np
import pytest

from rookery.config.schema import Draw
from rookery.errors import EmptyReplayError, ProtocolError
from rookery.replay.sampler import CEILING, FLOOR, SAMPLERS
from small_replays import Noise, prioritized, rank, uniform

ALMOST_ONE = np.nextafter(1.0, 0.0)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_way_of_drawing_has_a_sampler() -> None:
    assert set(SAMPLERS) == set(Draw)


class TestPrioritized:
    def test_a_new_row_gets_the_largest_priority_so_far(self) -> None:
        sampler = prioritized(8, alpha=0.5)
        sampler.admit(np.array([0, 1]))
        assert sampler.leaves[:2].tolist() == [1.0, 1.0]

        sampler.update_priorities(np.array([0, 1]), np.array([3.0, -9.0]))
        sampler.admit(np.array([2]))

        largest = np.sqrt(9.0 + FLOOR)
        assert sampler.leaves[:3].tolist() == [np.sqrt(3.0 + FLOOR), largest, largest]

    def test_a_smaller_error_does_not_lower_the_largest(self) -> None:
        sampler = prioritized(8)
        sampler.admit(np.array([0]))

        sampler.update_priorities(np.array([0]), np.array([0.25]))
        sampler.admit(np.array([1]))

        assert sampler.leaves[:2].tolist() == [0.25 + FLOOR, 1.0]

    def test_a_new_row_whose_error_is_known_is_ranked_by_it(self) -> None:
        sampler = prioritized(8, alpha=0.5)

        sampler.admit(np.array([3, 5, 6]), np.array([4.0, -0.25, 0.0]))

        ranked = np.sqrt(np.array([4.0, 0.25, 0.0]) + FLOOR).tolist()
        assert sampler.leaves.tolist() == [0, 0, 0, ranked[0], 0, *ranked[1:], 0]

    @pytest.mark.parametrize("error", [np.nan, np.inf, -np.inf, CEILING * 2])
    def test_a_first_error_that_is_not_finite_counts_as_unknown(self, error: float) -> None:
        sampler = prioritized(8)
        sampler.admit(np.array([0]))
        sampler.update_priorities(np.array([0]), np.array([7.0]))

        sampler.admit(np.array([2, 3]), np.array([0.5, error]))

        assert sampler.leaves[2:4].tolist() == [0.5 + FLOOR, 7.0 + FLOOR]

    def test_a_draw_from_nothing_says_so(self) -> None:
        with pytest.raises(EmptyReplayError, match="after the limiter's ready"):
            prioritized(8).sample(4, 1.0, rng())

    def test_a_draw_after_everything_was_cleared_says_so(self) -> None:
        sampler = prioritized(8)
        sampler.admit(np.arange(8))

        sampler.clear(8, 8)

        with pytest.raises(EmptyReplayError):
            sampler.sample(4, 1.0, rng())

    @pytest.mark.parametrize("batch", [0, -1])
    def test_a_batch_of_nothing_is_refused(self, batch: int) -> None:
        sampler = prioritized(8)
        sampler.admit(np.arange(8))

        with pytest.raises(ProtocolError, match=f"at least one row, got {batch}"):
            sampler.sample(batch, 1.0, rng())

    def test_a_batch_may_be_larger_than_what_there_is(self) -> None:
        sampler = prioritized(8)
        rank(sampler, {2: 1.0, 6: 3.0})

        rows, weight = sampler.sample(100, 1.0, rng())

        assert np.bincount(rows, minlength=8).tolist() == [0, 0, 25, 0, 0, 0, 75, 0]
        assert weight.shape == (100,)

    @pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
    def test_weights_are_relative_priorities_to_the_power_of_minus_beta(self, beta: float) -> None:
        sampler = prioritized(40, alpha=0.7)
        priorities = dict(enumerate(np.linspace(0.1, 9.0, 40).tolist()))
        rank(sampler, priorities)

        rows, weight = sampler.sample(64, beta, rng())

        chosen = sampler.leaves[rows]
        assert weight == pytest.approx((chosen / chosen.min()) ** -beta, rel=1e-6)
        assert weight.max() == 1.0
        assert weight.dtype == np.float32

    def test_rows_drawn_are_the_newest_in_their_slots(self) -> None:
        sampler = prioritized(10, committed=1_000_000_000_003)
        sampler.admit(np.arange(10) + 999_999_999_993)

        rows, _ = sampler.sample(500, 1.0, rng())

        assert set(rows.tolist()) == set(range(999_999_999_993, 1_000_000_000_003))

    def test_stale_rows_are_not_reranked(self) -> None:
        sampler = prioritized(4, committed=10)
        sampler.admit(np.array([6, 7, 8, 9]))

        sampler.update_priorities(
            np.array([5, 6, 2]), np.array([40.0, 2.0, 50.0])
        )  # 6 is the oldest left

        assert sampler.leaves.tolist() == [1.0, 1.0, 2.0 + FLOOR, 1.0]

    @pytest.mark.parametrize("row", [10, 13, 1 << 40, -1, -(1 << 40)])
    def test_rows_that_are_not_there_are_not_reranked(self, row: int) -> None:
        sampler = prioritized(4, committed=10)
        sampler.admit(np.array([6, 7, 8, 9]))

        sampler.update_priorities(np.array([row]), np.array([5.0]))

        assert sampler.leaves.tolist() == [1.0] * 4

    def test_a_row_that_may_not_be_drawn_is_not_made_drawable_by_an_error(self) -> None:
        sampler = prioritized(4)
        sampler.admit(np.array([0, 1]))

        sampler.update_priorities(np.array([1, 2]), np.array([5.0, 5.0]))

        assert sampler.leaves.tolist() == [1.0, 5.0 + FLOOR, 0.0, 0.0]

    def test_of_a_row_drawn_twice_the_last_error_counts(self) -> None:
        sampler = prioritized(4)
        sampler.admit(np.arange(4))

        sampler.update_priorities(np.array([2, 1, 2]), np.array([5.0, 6.0, 7.0]))

        assert sampler.leaves.tolist() == [1.0, 6.0 + FLOOR, 7.0 + FLOOR, 1.0]
        assert sampler.spread == sampler.leaves.sum()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, CEILING * 2])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_an_error_that_is_not_finite_is_refused_and_changes_nothing(
        self, bad: float, dtype: str
    ) -> None:
        sampler = prioritized(4)
        sampler.admit(np.arange(4))
        before = sampler.state()
        with np.errstate(over="ignore"):
            errors = np.array([2.0, bad, 3.0]).astype(dtype)

        with pytest.raises(ProtocolError, match="must be a finite float32"):
            sampler.update_priorities(np.array([0, 1, 2]), errors)

        assert sampler.spread == 4.0
        for name, array in sampler.state().items():
            assert np.array_equal(array, before[name])

    def test_a_zero_error_leaves_a_row_drawable(self) -> None:
        sampler = prioritized(4)
        sampler.admit(np.arange(4))

        sampler.update_priorities(np.arange(4), np.zeros(4))

        assert (sampler.leaves > 0).all()
        assert sampler.sample(4, 1.0, rng()).rows.tolist() == [0, 1, 2, 3]

    def test_errors_that_do_not_match_the_rows_are_refused(self) -> None:
        sampler = prioritized(4)
        sampler.admit(np.arange(4))

        with pytest.raises(ProtocolError, match=r"got \(2,\) for \(3,\)"):
            sampler.update_priorities(np.arange(3), np.ones(2))

    def test_noise_at_its_limits_reaches_the_first_and_the_last_row(self) -> None:
        sampler = prioritized(100)
        sampler.admit(np.arange(20, 60))

        assert sampler.sample(1, 1.0, Noise([0.0])).rows.tolist() == [20]
        assert sampler.sample(1, 1.0, Noise([ALMOST_ONE])).rows.tolist() == [59]

    def test_the_mass_of_huge_errors_is_finite(self) -> None:
        sampler = prioritized(64)
        sampler.admit(np.arange(64))

        sampler.update_priorities(np.arange(64), np.full(64, CEILING / 2))

        assert np.isfinite(sampler.spread)
        assert sampler.sample(64, 1.0, rng()).rows.tolist() == list(range(64))


class TestUniform:
    def test_open_final_and_overwritten_rows_are_never_drawn(self) -> None:
        sampler, chains = uniform(10, committed=25)
        chains.closed[[0, 3, 9]] = 1  # rows 20, 23 and 19

        rows, weight = sampler.sample(1000, 1.0, rng())

        assert set(rows.tolist()) == {19, 20, 23}
        assert (weight == 1.0).all()

    def test_every_closed_row_is_equally_likely(self) -> None:
        """60,000 draws of 20 rows: 3,000 each, standard deviation 53. A bound of 5.5 deviations
        would fail once in a million seeds; the seed is fixed."""
        sampler, chains = uniform(50, committed=130)
        closed = np.arange(81, 121, 2)
        chains.closed[closed % 50] = 1

        counts = np.bincount(sampler.sample(60_000, 1.0, rng()).rows)[closed]

        assert counts.sum() == 60_000
        assert abs(counts - 3_000).max() < 5.5 * 53

    def test_one_closed_row_among_very_many_is_found(self) -> None:
        sampler, chains = uniform(200_000, committed=300_000)
        chains.closed[123_456] = 1

        assert sampler.sample(3, 1.0, rng()).rows.tolist() == [123_456] * 3

    @pytest.mark.parametrize("committed", [0, 1, 10, 25])
    def test_a_draw_from_nothing_says_so(self, committed: int) -> None:
        sampler, _ = uniform(10, committed=committed)

        with pytest.raises(EmptyReplayError, match="after the limiter's ready"):
            sampler.sample(4, 1.0, rng())

    @pytest.mark.parametrize("batch", [0, -1])
    def test_a_batch_of_nothing_is_refused(self, batch: int) -> None:
        sampler, chains = uniform(10, committed=10)
        chains.closed[:] = 1

        with pytest.raises(ProtocolError, match=f"at least one row, got {batch}"):
            sampler.sample(batch, 1.0, rng())

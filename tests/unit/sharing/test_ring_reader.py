"""A reader of somebody else's ring: what it draws, and what it draws anew."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import EmptyReplayError, ProtocolError
from rookery.replay.fold import Chains, Horizon
from rookery.replay.ring import Ring, schema_of
from rookery.sharing.ring_reader import RingReader
from rookery.types import Array, EnvSpec
from sample_experience import IMAGE, MIXED, VECTOR, Move, Step, Told, feed, play

MOVES = [(0, k % 2, Move.TERMINATE if k % 11 > 8 else Move.RUN) for k in range(300)]
STEPS = play(MOVES)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class Busy(Ring):
    """A ring whose writer adds some rows whenever somebody has looked at it."""

    rest: list[Step]
    piece = 9

    def attend(self, rest: list[Step]) -> None:
        self.chains = Chains(2, 2, window=3, stride=1, capacity=self.capacity)
        self.rest = rest

    @property
    def oldest(self) -> int:
        looked = max(0, self.reserved - self.capacity)
        piece, self.rest = self.rest[: self.piece], self.rest[self.piece :]
        if piece:
            feed(self, self.chains, IMAGE, piece)
        return looked


@pytest.fixture
def ring() -> Iterator[Ring]:
    with closing(Ring.create(schema_of(VECTOR), 64)) as ring:
        yield ring


def fill(ring: Ring, spec: EnvSpec, steps: list[Step], window: int = 3) -> None:
    chains = Chains(2, 2, window=window, stride=1, capacity=ring.capacity)
    feed(ring, chains, spec, steps, [16] * 100)


def test_a_reader_draws_closed_rows_and_folds_them_its_own_way(ring: Ring) -> None:
    fill(ring, VECTOR, STEPS[:100], window=1)
    plain = Told(STEPS[:100], 64)

    batch = RingReader(VECTOR, Horizon(4, 0.5)).sample(ring, 500, rng())

    assert set(batch.rows.tolist()) == {r for r in plain.rows() if plain.may_begin(r, 4)}
    for b, row in enumerate(batch.rows.tolist()):
        reward, discount, last = plain.transition(row, 4, 0.5)
        assert (batch.reward[b], batch.discount[b]) == (reward, discount)
        assert np.array_equal(batch.next_obs[b], plain.seen(VECTOR, last))
    assert (batch.weight == 1.0).all()


def test_another_run_reads_a_named_ring_without_a_word(tmp_path: Path) -> None:
    with closing(Ring.create(schema_of(MIXED), 64, directory=tmp_path, name="a.ring")) as ring:
        fill(ring, MIXED, STEPS[:100])
        with closing(Ring.open(tmp_path / "a.ring")) as peer:
            batch = RingReader(MIXED, Horizon(2, 0.5)).sample(peer, 50, rng())

    plain = Told(STEPS[:100], 64)
    for b, row in enumerate(batch.rows.tolist()):
        for name, leaf in plain.seen(MIXED, row).items():
            assert np.array_equal(batch.obs[name][b], leaf)


def test_rows_overtaken_while_they_were_copied_are_drawn_anew() -> None:
    with closing(Busy.create(schema_of(IMAGE), 64)) as ring:
        ring.attend([])
        feed(ring, ring.chains, IMAGE, STEPS[:64])
        ring.rest = STEPS[64:256]
        reader = RingReader(IMAGE, Horizon(3, 0.5))

        batch = reader.sample(ring, 100, rng())

        plain = Told(STEPS, 1000)
        for b, row in enumerate(batch.rows.tolist()):
            assert np.array_equal(batch.obs[b], plain.seen(IMAGE, row))
            assert np.array_equal(batch.next_obs[b], plain.seen(IMAGE, plain.walk(row, 3)[-1]))
        assert batch.rows.size == 100
        assert reader.overwritten > 0


def test_a_row_whose_first_frame_alone_was_overtaken_is_drawn_anew() -> None:
    """One endless episode, frames [r - 2, r - 1, r]: when the writer has overtaken `k` rows in
    mid-copy, rows that are still there but began less than 2 before them are no good."""
    steps = play([(0, 0, Move.RUN)] * 400)
    with closing(Busy.create(schema_of(IMAGE), 64)) as ring:
        ring.attend([])
        feed(ring, ring.chains, IMAGE, steps[:64])
        ring.rest = steps[64:70]  # overtakes rows 0 to 5 once
        reader = RingReader(IMAGE, Horizon(1, 0.5))

        batch = reader.sample(ring, 2000, rng())

    assert batch.rows.min() == 8


def test_sequences_that_were_drawn_in_parts_are_joined() -> None:
    with closing(Busy.create(schema_of(IMAGE), 64)) as ring:
        ring.attend([])
        feed(ring, ring.chains, IMAGE, STEPS[:64])
        ring.rest = STEPS[64:120]
        reader = RingReader(IMAGE, Horizon(1, 0.5, sequence=3))

        batch = reader.sample(ring, 200, rng())

    assert reader.overwritten > 0
    assert batch.obs.shape == (200, 4, 3, 2, 3)
    assert batch.mask.shape == batch.reward.shape == batch.action.shape == (200, 3)
    assert batch.next_obs is None


def test_a_draw_from_nothing_gives_up(ring: Ring) -> None:
    reader = RingReader(VECTOR, Horizon(3, 0.5))
    with pytest.raises(EmptyReplayError, match="found 0 of 4 rows in 100 tries"):
        reader.sample(ring, 4, rng())

    fill(ring, VECTOR, play([(0, 0, Move.RUN)] * 3))
    with pytest.raises(EmptyReplayError, match="found 0 of 4 rows"):
        reader.sample(ring, 4, rng())


def test_a_draw_gives_up_where_the_writer_is_always_faster(ring: Ring) -> None:
    class Race:
        """A generator during whose every call the writer fills the ring once more."""

        def integers(self, low: int, high: int, size: int) -> Array:
            fill(ring, VECTOR, STEPS[:64])
            return np.linspace(low, high - 1, size).astype(np.int64)

    fill(ring, VECTOR, STEPS[:64])
    reader = RingReader(VECTOR, Horizon(1, 0.5))

    with pytest.raises(EmptyReplayError, match="found 0 of 4 rows in 100 tries"):
        reader.sample(ring, 4, Race())
    assert reader.overwritten > 100


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_of_nothing_is_refused(ring: Ring, batch: int) -> None:
    with pytest.raises(ProtocolError, match=f"at least one row, got {batch}"):
        RingReader(VECTOR, Horizon(1, 0.5)).sample(ring, batch, rng())

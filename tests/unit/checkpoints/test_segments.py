"""Files of replay rows: what is read where some of them are damaged."""

from dataclasses import replace

import numpy as np

from rookery.checkpoints.checkpoint import Digest, Segment, read_segments, save_bytes
from rookery.replay.saved_rows import SavedReplay, are_lost
from rookery.types import Array, End


def saved(folder, first: int, shard: int = 0) -> Segment:
    columns: dict[str, Array] = {
        "end": np.zeros(4, dtype=np.uint8),
        "actor": np.zeros(4, dtype=np.int32),
        "incarnation": np.full(4, 2, dtype=np.int32),
    }
    path, raw = folder / f"rows-{shard}-{first}", save_bytes(columns)
    path.write_bytes(raw)
    return Segment(path, first, first + 4, Digest.of(raw), shard)


def test_rows_of_a_damaged_file_belong_to_no_episode_and_the_numbers_of_rows_stay(tmp_path):
    whole, damaged, last = (saved(tmp_path, first) for first in (0, 4, 8))
    damaged.path.unlink()  # must not be read

    read = list(read_segments([whole, replace(damaged, intact=False), last]))

    assert [first for first, _ in read] == [0, 4, 8]
    assert [are_lost(columns) for _, columns in read] == [False, True, False]
    assert read[1][1]["end"].tolist() == [End.TRUNCATED] * 4
    assert read[1][1]["episode"].tolist() == [-1] * 4


def test_rows_on_the_sides_of_any_gap_are_of_different_incarnations(tmp_path):
    segments = [saved(tmp_path, first) for first in (0, 4, 8, 12, 16)]
    for gap in (1, 3):
        segments[gap] = replace(segments[gap], intact=False)

    read = [columns for _, columns in read_segments(segments) if not are_lost(columns)]

    kept = [set(columns["incarnation"].tolist()) for columns in read]
    assert len(set.union(*kept)) == 3
    assert kept[-1] == {2}  # the newest rows may be continued by their actor


def test_a_gap_in_one_shard_does_not_change_another(tmp_path):
    segments = [saved(tmp_path, 0), replace(saved(tmp_path, 0, shard=1), intact=False)]

    ((_, columns),) = read_segments(segments, 0)

    assert columns["incarnation"].tolist() == [2] * 4


def test_rows_that_go_to_other_shards_leave_out_the_lost_ones(tmp_path):
    segments = [saved(tmp_path, 0), replace(saved(tmp_path, 4), intact=False), saved(tmp_path, 8)]
    saved_replay = SavedReplay({"first": 1, "committed": 11}, {}, [read_segments(segments)])

    read = list(saved_replay.rows())

    assert [columns["end"].size for columns in read] == [3, 3]

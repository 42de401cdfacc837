"""metrics.jsonl and progress.csv: whole lines, finite numbers, cut back exactly."""

import csv as stdlib_csv
import json
import math

import numpy as np
import pytest

from rookery.errors import CheckpointError
from rookery.event import Counters, Evaluated, Learned, Logged, Reason, Saved, Stopped, Warned
from rookery.report.metrics.metric_names import KNOWN
from rookery.report.trackers import jsonl, whole_lines
from rookery.report.trackers.csv import COUNTED, Csv
from rookery.report.trackers.jsonl import Jsonl
from rookery.report.trackers.rewind import cut


def logged(env_steps, **metrics):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Logged(Counters(env_steps, env_steps // 2, 3), env_steps / 100, named)


def evaluated(env_steps, *returns, success_rate=None):
    lengths = tuple(10 for _ in returns)
    return Evaluated(Counters(env_steps), 1, 2.0, returns, lengths, success_rate, True, False)


def stopped(env_steps=3000):
    return Stopped(Counters(env_steps), Reason.TARGET, 9.0, 8.0, None, True, "ab")


def written(sink, *events):
    for event in events:
        sink.write(event)
    sink.close()


def table(path):
    with path.open(newline="") as file:
        return list(stdlib_csv.DictReader(file))


def test_every_kept_event_is_one_json_object(tmp_path):
    written(
        Jsonl(tmp_path),
        logged(1000, train__loss=0.5),
        evaluated(1000, 1.0, 3.0),
        Saved(Counters(1000), "checkpoints/1000", 0.1),
        Warned(Counters(1000), "sink", "oh"),
        Learned(Counters(), None),
        stopped(),
    )

    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kinds = ["logged", "evaluated", "saved", "warned", "stopped"]
    assert [entry["event"] for entry in entries] == kinds
    assert entries[0] == {
        "event": "logged",
        "env_steps": 1000,
        "learner_steps": 500,
        "episodes": 3,
        "wall_s": 10.0,
        "metrics": {"train/loss": 0.5},
        "limit": "",
    }
    assert (entries[1]["score"], entries[1]["returns"]) == (2.0, [1.0, 3.0])
    assert entries[4]["reason"] == "target"
    assert jsonl.read(tmp_path) == entries


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    written(Jsonl(tmp_path), evaluated(1, math.nan, np.float32(2.0), math.inf))

    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["returns"] == [None, 2.0, None]


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    sink = Jsonl(tmp_path)
    sink.write(logged(1))
    seen = jsonl.read(tmp_path)
    sink.close()

    assert len(seen) == 1


def test_a_torn_last_line_is_gone_when_the_file_is_opened_again(tmp_path):
    written(Jsonl(tmp_path), logged(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "logg')

    written(Jsonl(tmp_path), logged(2))

    assert [entry["env_steps"] for entry in jsonl.read(tmp_path)] == [1, 2]


def test_a_write_that_found_no_room_leaves_no_half_line(tmp_path):
    file = whole_lines.Lines(tmp_path / "a")
    file.append("one")

    class Full:
        def __init__(self, real):
            self.real = real

        def write(self, data):
            return self.real.write(data[:2])

        def __getattr__(self, name):
            return getattr(self.real, name)

    real, file._file = file._file, Full(file._file)
    with pytest.raises(OSError, match="no room for 4 more bytes"):
        file.append("two")
    file._file = real
    file.append("three")
    file.close()

    assert whole_lines.read(tmp_path / "a") == ["one", "three"]


def test_replacing_a_file_leaves_nothing_beside_it_even_when_it_fails(tmp_path):
    (tmp_path / "a").write_text("old\n")

    with pytest.raises(UnicodeEncodeError):
        whole_lines.replace(tmp_path / "a", ["new", "\ud800"])

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old\n")]


def test_the_header_has_all_known_names_from_the_first_row_on(tmp_path):
    written(Csv(tmp_path), logged(1000, train__loss=0.5))

    (row,) = table(tmp_path / "progress.csv")
    assert list(row) == [*COUNTED, *KNOWN]
    assert (row["env_steps"], row["wall_s"], row["train/loss"]) == ("1000", "10", "0.5")
    assert row["eval/mean_reward"] == ""


def test_the_last_evaluation_is_carried_through_the_rows_after_it(tmp_path):
    written(
        Csv(tmp_path), evaluated(1, 3.0, 4.0), logged(1), logged(2), evaluated(2, 9.0), logged(3)
    )

    rows = table(tmp_path / "progress.csv")
    assert [row["eval/mean_reward"] for row in rows] == ["3.5", "3.5", "9"]
    assert rows[0]["eval/mean_ep_length"] == "10"


def test_an_evaluation_is_carried_over_a_restart_too(tmp_path):
    written(Csv(tmp_path), evaluated(1, 3.5), logged(1))

    written(Csv(tmp_path), logged(2))

    assert [row["eval/mean_reward"] for row in table(tmp_path / "progress.csv")] == ["3.5", "3.5"]


def test_a_new_key_widens_the_table_and_keeps_what_was_written(tmp_path):
    key = 'rollout/with "quotes", and commas'
    written(
        Csv(tmp_path), logged(1, train__loss=1.5), Logged(Counters(2), 0.0, {key: 7.25}), logged(3)
    )

    rows = table(tmp_path / "progress.csv")
    assert [row[key] for row in rows] == ["", "7.25", ""]
    assert [row["train/loss"] for row in rows] == ["1.5", "", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.csv"]


def test_numbers_keep_every_digit(tmp_path):
    written(Csv(tmp_path), logged(1, train__loss=0.1 + 0.2))

    assert float(table(tmp_path / "progress.csv")[0]["train/loss"]) == 0.1 + 0.2


def fill(run_dir):
    events = [logged(1000), logged(2000), evaluated(1000, 5.0), logged(3000), stopped(3000)]
    written(Jsonl(run_dir), *events)
    written(Csv(run_dir), *events)


def test_cut_keeps_what_was_known_at_the_mark(tmp_path):
    fill(tmp_path)

    cut(tmp_path, 2000)

    found = [(entry["event"], entry["env_steps"]) for entry in jsonl.read(tmp_path)]
    assert found == [("logged", 1000), ("logged", 2000), ("evaluated", 1000)]
    assert [row["env_steps"] for row in table(tmp_path / "progress.csv")] == ["1000", "2000"]
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "progress.csv"}


def test_cut_drops_a_torn_last_line(tmp_path):
    fill(tmp_path)
    for name, torn in (("metrics.jsonl", '{"event": "logged", "env_ste'), ("progress.csv", "15")):
        with (tmp_path / name).open("a") as file:
            file.write(torn)

    cut(tmp_path, 9999)

    assert len(jsonl.read(tmp_path)) == 5
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")
    assert [row["env_steps"] for row in table(tmp_path / "progress.csv")] == [
        "1000",
        "2000",
        "3000",
    ]


def test_cut_drops_lines_that_are_no_entries(tmp_path):
    fill(tmp_path)
    for name, junk in (("metrics.jsonl", 'null\n{"a": 1}\n\x00\n'), ("progress.csv", "7,8\n\nx\n")):
        with (tmp_path / name).open("a") as file:
            file.write(junk)

    cut(tmp_path, 9999)

    assert len(whole_lines.read(tmp_path / "metrics.jsonl")) == 5
    assert len(whole_lines.read(tmp_path / "progress.csv")) == 4


def test_a_cut_run_goes_on_as_if_it_had_never_been_further(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for run_dir in (whole, resumed):
        run_dir.mkdir()
    written(Csv(whole), *(logged(steps) for steps in (1000, 2000, 3000, 4000)))
    written(Csv(resumed), *(logged(steps) for steps in (1000, 2000, 3000)))

    cut(resumed, 2000)
    written(Csv(resumed), logged(3000), logged(4000))

    ours, theirs = (path / "progress.csv" for path in (whole, resumed))
    assert ours.read_bytes() == theirs.read_bytes()


def test_cut_of_an_empty_folder_and_of_an_unfinished_header_does_no_harm(tmp_path):
    cut(tmp_path, 10)
    (tmp_path / "progress.csv").write_text("env_steps,learn")

    cut(tmp_path, 10)
    written(Csv(tmp_path), logged(1))

    assert [row["env_steps"] for row in table(tmp_path / "progress.csv")] == ["1"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "progress.csv", "timeline.jsonl"])
def test_a_file_that_cannot_be_cut_back_is_named(tmp_path, name):
    (tmp_path / name).mkdir()

    with pytest.raises(CheckpointError, match=rf"{name} cannot be cut back to env step 500"):
        cut(tmp_path, 500)

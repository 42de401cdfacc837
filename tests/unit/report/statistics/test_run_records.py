"""What is read from run folders, whatever state they are in."""

import json

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.event import Counters, Evaluated, Reason
from rookery.report.statistics.run_records import Metric, find, load, read
from rookery.report.trackers.jsonl import NAME, Jsonl
from run_records_on_disk import CARTPOLE, CORRIDOR, group, record

EVALUATION, ROLLOUT = Metric.EVALUATION, Metric.ROLLOUT
RISING = {1_000: 0.25, 2_000: 0.75, 3_000: 0.5}


def append(folder, text):
    with (folder / NAME).open("a") as file:
        file.write(text)


def test_a_run_is_known_by_its_settings_and_its_scores(tmp_path):
    folder = record(tmp_path / "a", RISING, report__tag="x", run__seed=7, eval__target=0.7)

    run = read(folder, EVALUATION)

    assert (run.group, run.task, run.seed, run.target) == ("x", CORRIDOR, 7, 0.7)
    assert (run.budget, run.period, run.last_step) == (4_000, 1_000, 3_000)
    assert run.steps.tolist() == [1_000, 2_000, 3_000]
    assert (run.final, run.best) == (0.5, 0.75)
    assert (run.reason, run.solved, run.damaged, run.missing) == ("env_steps", False, 0, 0)


def test_a_run_without_a_tag_belongs_to_its_scenario(tmp_path):
    assert read(record(tmp_path / "a", RISING), EVALUATION).group == "corridor"


def test_a_name_cannot_steer_a_terminal(tmp_path):
    folder = record(tmp_path / "a", RISING, report__tag="\x1b[31mred\n")

    assert read(folder, EVALUATION).group == "?[31mred?"


def test_the_other_metric_is_that_of_training(tmp_path):
    run = read(record(tmp_path / "a", RISING, report__log_period=500), ROLLOUT)

    assert run.scores.tolist() == [-0.75, -0.25, -0.5]
    assert run.period == 500


def test_scores_are_put_in_the_order_of_their_steps_and_the_later_of_two_counts(tmp_path):
    folder = record(tmp_path / "a", {2_000: 0.2, 1_000: 0.1})
    sink = Jsonl(folder)
    sink.write(Evaluated(Counters(2_000), 1, 1.0, (0.9,), (5,), None, False, False))
    sink.close()

    run = read(folder, EVALUATION)

    assert run.steps.tolist() == [1_000, 2_000]
    assert run.scores.tolist() == [0.1, 0.9]


@pytest.mark.parametrize("reason", [None, Reason.INTERRUPTED])
def test_a_run_that_is_not_over_is_read_as_far_as_it_came(tmp_path, reason):
    run = read(record(tmp_path / "a", RISING, reason=reason, last_step=3_500), EVALUATION)

    assert (run.reason, run.last_step, run.final) == (reason, 3_500, 0.5)


def test_a_run_that_was_resumed_goes_on(tmp_path):
    folder = record(tmp_path / "a", RISING, reason=Reason.INTERRUPTED)
    sink = Jsonl(folder)
    sink.write(Evaluated(Counters(4_000), 1, 1.0, (0.9,), (5,), None, False, False))
    sink.close()

    assert read(folder, EVALUATION).reason is None


@pytest.mark.parametrize(
    "line",
    [
        "{broken",
        "[1, 2]",
        '{"event": "evaluated", "score": 3}',
        '{"event": "evaluated", "env_steps": -5, "score": 3}',
        '{"event": "evaluated", "env_steps": 1' + "0" * 30 + ', "score": 3}',
        "\x00\x00",
    ],
)
def test_a_damaged_line_is_left_out_and_counted(tmp_path, line):
    folder = record(tmp_path / "a", RISING)
    append(folder, f"{line}\n")

    run = read(folder, EVALUATION)

    assert (run.scores.tolist(), run.damaged) == ([0.25, 0.75, 0.5], 1)


def test_half_a_line_at_the_end_is_one_that_is_being_written(tmp_path):
    folder = record(tmp_path / "a", RISING)
    append(folder, '{"event": "evaluated", "env_steps": 4000, "sco')

    run = read(folder, EVALUATION)

    assert (run.final, run.damaged) == (0.5, 0)


@pytest.mark.parametrize("score", [None, "high", True, [1], "1e999", "1" + "0" * 400])
def test_a_score_that_is_no_finite_number_is_left_out_and_counted(tmp_path, score):
    folder = record(tmp_path / "a", RISING)
    text = score if isinstance(score, str) and score[0] == "1" else json.dumps(score)
    append(folder, f'{{"event": "evaluated", "env_steps": 4000, "score": {text}}}\n')

    run = read(folder, EVALUATION)

    assert (run.final, run.missing, run.last_step) == (0.5, 1, 4_000)


def test_a_nan_of_an_environment_is_left_out_and_counted(tmp_path):
    run = read(record(tmp_path / "a", {1_000: 0.5, 2_000: np.nan}), EVALUATION)

    assert (run.final, run.missing) == (0.5, 1)


def test_a_run_that_has_not_begun_has_no_scores(tmp_path):
    folder = record(tmp_path / "a", {})
    (folder / NAME).unlink()

    run = read(folder, EVALUATION)

    assert (len(run.scores), run.last_step, run.reason) == (0, 0, None)


# Which folders


def test_runs_are_found_one_and_two_levels_down_and_each_once(tmp_path):
    group(tmp_path / "runs" / "deep", "a", [1.0])
    group(tmp_path / "runs", "b", [3.0])
    group(tmp_path / "runs" / "too" / "deep", "c", [4.0])
    top = tmp_path / "runs"

    loaded = load([top / "b-0", top, top / "deep"], EVALUATION)

    assert [run.folder.name for run in loaded.runs] == ["b-0", "a-0"]


def test_a_run_folder_stands_for_itself_alone(tmp_path):
    folder = record(tmp_path / "a", RISING)
    record(folder / "inside", RISING)

    assert find(folder) == [folder]


@pytest.mark.parametrize(("name", "said"), [("absent", "no folder"), ("empty", "holds no run")])
def test_a_folder_without_runs_is_refused(tmp_path, name, said):
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match=said):
        load([tmp_path / name], EVALUATION)


def test_a_run_that_cannot_be_read_is_refused_where_it_was_named_and_left_out_elsewhere(tmp_path):
    group(tmp_path, "a", [1.0])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.yaml").write_text("nonsense: 3\n")

    loaded = load([tmp_path], EVALUATION)

    assert [run.folder.name for run in loaded.runs] == ["a-0"]
    assert "nonsense" in loaded.unread[0]
    with pytest.raises(ConfigError, match="nonsense"):
        load([tmp_path / "bad"], EVALUATION)


def test_a_record_that_cannot_be_opened_is_refused(tmp_path):
    folder = record(tmp_path / "a", RISING)
    (folder / NAME).unlink()
    (folder / NAME).mkdir()

    with pytest.raises(ConfigError, match="cannot be read"):
        read(folder, EVALUATION)


def test_tasks_are_told_apart_by_their_environment(tmp_path):
    assert read(record(tmp_path / "a", RISING, env__id=CARTPOLE), EVALUATION).task == CARTPOLE

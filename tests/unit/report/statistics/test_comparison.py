"""Groups of runs side by side: what is computed, what is warned of, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.report.statistics import comparison_tables
from rookery.report.statistics.bootstrap import redraw
from rookery.report.statistics.caveats import caveats
from rookery.report.statistics.comparison import Question, as_dict, compare
from rookery.report.statistics.learning_curve import MOST, curve, marks, reach, scores_at
from rookery.report.statistics.run_records import RunRecord
from run_records_on_disk import CARTPOLE

REPS = 100
QUESTION = Question(reps=REPS)


def run(scores, *, group="a", task="T", seed=0, target=1.0, reason="env_steps"):
    """A run that was scored at these env steps."""
    return RunRecord(
        folder=Path(f"{group}-{task}-{seed}"),
        group=group,
        task=task,
        seed=seed,
        target=target,
        budget=4_000,
        period=1_000,
        env="",
        steps=np.array(sorted(scores), dtype=np.float64),
        scores=np.array([scores[step] for step in sorted(scores)], dtype=np.float64),
        last_step=max(scores, default=0),
        reason=reason,
        damaged=0,
        missing=0,
    )


def runs(group, finals, **about):
    return [run({1_000: 0.0, 2_000: x}, group=group, seed=i, **about) for i, x in enumerate(finals)]


def draws(*strata):
    return redraw(strata, REPS, np.random.default_rng(0))


def cell(found, group, task=0):
    return next(cell for cell in found.tasks[task].cells if cell.group == group)


# Curves


def test_marks_begin_where_the_last_run_has_its_first_score():
    late, early = run({1_024: 0, 2_048: 1, 3_072: 1}), run({1_000: 0, 2_000: 1})

    assert marks([late, early]).tolist() == [1_024, 2_024, 3_024]


def test_a_mark_just_beyond_the_last_score_is_still_one():
    assert marks([run({1_030: 0, 2_004: 1})]).tolist() == [1_030, 2_030]


def test_a_long_run_is_looked_at_less_often():
    long = run({k * 1_000: 0.0 for k in range(1, 451)})

    at = marks([long])

    assert len(at) <= MOST
    assert np.diff(at).tolist() == [5_000] * (len(at) - 1)


def test_one_score_is_one_mark():
    assert marks([run({300: 1.0})]).tolist() == [300]


def test_between_two_scores_it_is_a_straight_line():
    at = np.array([1_000.0, 1_500.0, 2_000.0])

    assert scores_at(run({1_000: 0.0, 2_000: 4.0}), at).tolist() == [0.0, 2.0, 4.0]


def test_only_a_solved_run_carries_its_last_score_forward():
    at = np.array([500.0, 1_000.0, 1_500.0, 1_501.0, 9_000.0])

    solved = scores_at(run({1_000: 3.0}, reason="target"), at)
    ended = scores_at(run({1_000: 3.0}), at)

    assert solved.tolist()[1:] == [3.0] * 4
    assert ended.tolist()[1:3] == [3.0] * 2
    assert np.isnan(ended[[0, 3, 4]]).all()


def test_a_curve_ends_with_its_first_run_that_was_not_solved():
    short = run({1_000: 0.0, 2_000: 1.0})
    solved = run({1_000: 1.0}, reason="target")
    long = run({k * 1_000: 0.0 for k in range(1, 6)})
    at = marks([short, solved, long])

    both = curve([[short, solved]], at, draws(np.zeros(2)))
    alone = curve([[long]], at, draws(np.zeros(1)))

    assert both.env_steps == [1_000, 2_000]
    assert both.carried == [0, 1]
    assert [point.value for point in both.iqm] == [0.5, 1.0]
    assert alone.env_steps == [1_000, 2_000, 3_000, 4_000, 5_000]


# Steps to a threshold


def test_steps_are_those_of_the_first_score_that_is_high_enough():
    found = reach([run({1_000: 0.2, 2_000: 0.9, 3_000: 0.1})], 0.9, draws(np.zeros(1)))

    assert (found.env_steps.value, found.reached, found.runs) == (2_000, 1, 1)
    assert not any(found.at_least)


def test_a_run_that_never_gets_there_counts_with_its_last_step_and_makes_a_bound():
    there, never = run({1_000: 1.0}), run({1_000: 0.0}, target=1.0)._replace(last_step=3_000)

    few = reach([there, there, never], None, draws(np.zeros(3)))
    many = reach([there, never, never], None, draws(np.zeros(3)))

    assert (few.env_steps.value, few.at_least.value, few.reached) == (1_000, False, 2)
    assert (many.env_steps.value, many.at_least.value, many.reached) == (3_000, True, 1)
    assert few.at_least.high  # three draws may well hold two that never got there
    assert comparison_tables.steps(many).startswith(">= 3,000 [")


def test_a_run_that_was_cut_short_does_not_look_quick():
    there, cut = run({5_000: 1.0}), run({100: 0.0})

    found = reach([there, there, cut], 1.0, draws(np.zeros(3)))
    alone = reach([there, cut], 1.0, draws(np.zeros(2)))

    assert (found.env_steps.value, found.at_least.value) == (5_000, False)
    assert alone.at_least.value


def test_runs_without_a_target_have_no_steps_to_it():
    assert reach([run({1: 1.0}, target=None)], None, draws(np.zeros(1))) is None


def test_own_targets_are_used_and_not_shown_as_one():
    found = reach([run({1: 1.0}, target=0.5), run({1: 1.0}, target=2.0)], None, draws(np.zeros(2)))

    assert (found.threshold, found.reached) == (None, 1)


# Groups


def test_each_group_gets_its_numbers():
    found = compare([*runs("a", [1, 2, 3, 4]), *runs("b", [5, 6, 7, 9])], QUESTION)

    a, b = cell(found, "a"), cell(found, "b")
    assert (a.runs, a.final.iqm.value, a.final.median.value, a.final.mean.value) == (
        4,
        2.5,
        2.5,
        2.5,
    )
    assert b.final.mean.value == 6.75
    assert b.spread.std.value == pytest.approx(np.std([5, 6, 7, 9], ddof=1))
    assert b.spread.iqr.value == pytest.approx(1.75)
    assert (a.improvement, b.improvement.value) == (None, 1.0)
    assert found.baseline == "a"


def test_best_is_the_highest_score_and_final_the_last():
    found = compare([run({1_000: 5.0, 2_000: 1.0})], QUESTION)

    assert (cell(found, "a").final.iqm.value, cell(found, "a").best.iqm.value) == (1.0, 5.0)


def test_one_run_has_numbers_and_no_intervals():
    found = compare([run({1_000: 5.0})], QUESTION)

    alone = cell(found, "a")
    assert alone.final.iqm == (5.0, None, None)
    assert alone.spread is None
    assert alone.curve.iqm == [(5.0, None, None)]
    assert json.dumps(as_dict(found), allow_nan=False)
    assert comparison_tables.tables(found)


def test_groups_may_differ_in_size():
    found = compare([*runs("a", [1.0]), *runs("b", [0.0, 1.0, 2.0])], QUESTION)

    assert cell(found, "b").improvement == (0.5, None, None)


def test_an_interval_does_not_depend_on_what_a_group_is_compared_to():
    a, b = runs("a", [1, 2, 3, 5]), runs("b", [2, 2, 7, 8, 9])

    alone, beside = compare(b, QUESTION), compare([*a, *b], QUESTION)

    assert cell(alone, "b").final == cell(beside, "b").final


def test_the_seed_decides_and_nothing_else():
    some = [*runs("a", [1, 2, 3, 5]), *runs("b", [2, 2, 7, 8, 9])]

    first, again, other = (compare(some, QUESTION._replace(seed=seed)) for seed in (3, 3, 4))

    assert first == again
    assert cell(first, "b").final != cell(other, "b").final


def test_tags_choose_groups_and_their_order():
    some = [*runs("a", [1, 2]), *runs("b", [3, 4]), *runs("c", [5, 6])]

    found = compare(some, QUESTION._replace(tags=["c", "a"]))

    assert (found.groups, found.baseline) == (["c", "a"], "c")
    assert compare(some, QUESTION._replace(baseline="b")).baseline == "b"


def test_a_group_called_baseline_is_the_baseline():
    some = [*runs("a", [1, 2]), *runs("baseline", [3, 4])]

    assert compare(some, QUESTION).baseline == "baseline"
    assert compare(some, QUESTION._replace(baseline="a")).baseline == "a"


# Several tasks


def two_tasks(**other):
    """On T scores lie from 0 to 10 with a target of 10, on U from -200 to -100, target -100."""
    low = {"task": "U", "target": -100.0, **other}
    return [
        *(run({1_000: 0.0, 2_000: x}, seed=i, target=10.0) for i, x in enumerate((5.0, 10.0))),
        *(run({1_000: -200.0, 2_000: x}, seed=i, **low) for i, x in enumerate((-150.0, -100.0))),
    ]


def test_scores_of_tasks_are_averaged_between_lowest_and_target():
    overall = compare(two_tasks(), QUESTION).overall

    assert overall.scales == {"T": (0.0, 10.0), "U": (-200.0, -100.0)}
    assert overall.cells[0].final.mean.value == pytest.approx(0.75)
    assert overall.cells[0].spread.std.value == pytest.approx(np.std([0.5, 1.0], ddof=1))
    assert overall.cells[0].reach is None
    assert overall.cells[0].curve.env_steps == [1_000, 2_000]


@pytest.mark.parametrize(
    ("other", "said"),
    [({"target": None}, "no target that all"), ({"target": -200.0}, "not above the lowest")],
)
def test_tasks_that_have_no_scale_stand_alone(other, said):
    found = compare(two_tasks(**other), QUESTION)

    assert found.overall is None
    assert len(found.tasks) == 2
    assert any(said in note and "--threshold U=SCORE" in note for note in found.notes)


def test_a_task_with_two_targets_has_no_scale():
    first, *rest = two_tasks()

    found = compare([first._replace(target=11.0), *rest], QUESTION)

    assert found.overall is None
    assert any("T has no target that all its runs share" in note for note in found.notes)


def test_a_threshold_gives_a_task_its_scale():
    found = compare(two_tasks(target=None), QUESTION._replace(thresholds={"U": -50.0}))

    assert found.overall.scales["U"] == (-200.0, -50.0)
    assert found.tasks[1].threshold == -50.0


def test_improvement_is_averaged_over_the_tasks_of_both_without_any_scale():
    some = [
        *runs("a", [1, 2], target=None),
        *runs("b", [3, 4], target=None),
        *runs("a", [1, 2], task="U"),
        *runs("b", [1, 2], task="U"),
        *runs("b", [9, 9], task="V"),
    ]

    found = compare(some, QUESTION)

    assert found.improvement["b"].value == 0.75
    assert found.overall is None


def test_figures_over_all_tasks_are_of_those_that_all_groups_share():
    more = [run._replace(group="b") for run in two_tasks()] + runs("b", [1, 2], task="V")

    found = compare([*two_tasks(), *more], QUESTION)

    assert set(found.overall.scales) == {"T", "U"}
    assert any(note.startswith("V: not in the figures") for note in found.notes)


def test_groups_without_common_tasks_are_not_compared():
    found = compare([*runs("a", [1, 2]), *runs("b", [1, 2], task="U")], QUESTION)

    assert (found.overall, found.improvement) == (None, {})
    assert any("share fewer than two tasks" in note for note in found.notes)


# What is said, and what is refused


@pytest.mark.parametrize(
    ("some", "said"),
    [
        ([run({1: 1.0}), run({}, seed=1)], "1 run without any score: left out (a-T-1)"),
        ([run({1: 1.0}, reason=None)], "a: 1 run not over, cut short or failed"),
        ([run({1: 1.0}, reason="interrupted")], "(env steps 1 of 4,000)"),
        ([run({1: 1.0}, reason="target")], "a: 1 of 1 run stopped because solved"),
        (runs("a", [1, 2]), "few runs (2 of a on T)"),
        ([run({1: 1.0}), run({1: 1.0}, seed=1, target=2.0)], "different targets (1.00, 2.00)"),
        ([run({1: 1.0}), run({1: 1.0}, seed=1)._replace(env="x")], "differ in env.kwargs"),
        ([run({1: 1.0}), run({1: 1.0}, seed=1)._replace(budget=9)], "(9 to 4,000 env steps)"),
        ([run({1: 1.0}), run({1: 2.0})], "more than one run with seed 0"),
        ([run({1: 1.0})._replace(damaged=2)], "unreadable lines of records, left out: 2"),
        ([run({1: 1.0})._replace(missing=3)], "no finite number, left out: 3"),
    ],
)
def test_what_may_mislead_is_said(some, said):
    assert any(said in sentence for sentence in caveats(some))


def test_a_sound_comparison_needs_no_caveat():
    assert caveats([*runs("a", [1, 2, 3, 4, 5]), *runs("b", [1, 2, 3, 4, 5])]) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tags": ["x"]}, "There are: a, b"),
        ({"tags": ["a"], "baseline": "b"}, "--baseline 'b' is no group"),
        ({"thresholds": {"W": 1.0}}, "--threshold names 'W'"),
        ({"thresholds": {"": 1.0}}, "one score for 2 tasks"),
    ],
)
def test_a_question_about_what_is_not_there_is_refused(changes, said):
    some = [*runs("a", [1, 2]), *runs("b", [3, 4]), *runs("a", [1, 2], task=CARTPOLE)]
    if "baseline" in changes:
        some = [one for one in some if one.task == "T"]

    with pytest.raises(ConfigError, match=said):
        compare(some, QUESTION._replace(**changes))


def test_runs_without_any_score_are_refused():
    with pytest.raises(ConfigError, match=r"in 1 run; .* try --metric rollout/ep_rew_mean"):
        compare([run({})], QUESTION)


def test_a_small_score_keeps_its_digits():
    assert [comparison_tables.number(x) for x in (-0.0, 0.0034, -0.02, 0.934, 475.0)] == [
        "0.00",
        "0.0034",
        "-0.02",
        "0.93",
        "475.0",
    ]

"""The bottleneck: named after the process that the others wait for."""

import pytest

from rookery.report.metrics.bottleneck import NOTICEABLE, LimitedBy
from rookery.report.metrics.bottleneck import bottleneck as of_shares


def bottleneck(totals, seconds):
    """Judges by seconds spent on activities in an interval."""
    return of_shares(
        {
            process: {activity: spent / seconds for activity, spent in found.items()}
            for process, found in totals.items()
        }
    )


def actor(plays, waits):
    return {"play": plays, "wait": waits}


def learner(learns, waits, **more):
    return {"learn": learns, "drain": 0.1, "wait": waits, **more}


@pytest.mark.parametrize(
    ("totals", "role", "share"),
    [
        ({"a": actor(10, 0), "l": learner(3.7, 6.2)}, LimitedBy.ACTORS, 0.62),
        ({"a": actor(2, 8), "l": learner(9.8, 0)}, LimitedBy.LEARNER, 0.8),
        ({"a": actor(1, 9), "l": learner(1, 8.9)}, LimitedBy.LIMITER, 0.79),
        ({"a": actor(9, 0.8), "l": learner(5, 1, evaluate=3)}, LimitedBy.EVALUATOR, 0.3),
        ({"a": actor(9.8, 0.1), "l": learner(9.6, 0.2)}, LimitedBy.NONE, 0.02),
        ({"a": actor(9, 1), "b": actor(3, 7), "l": learner(9.9, 0)}, LimitedBy.LEARNER, 0.4),
        ({}, LimitedBy.NONE, 0.0),
    ],
    ids=["actors", "learner", "both", "evaluator", "balanced", "mean of actors", "nothing known"],
)
def test_the_limit_is_whom_the_others_wait_for(totals, role, share):
    found = bottleneck(totals, 10.0)

    assert (found.role, found.share) == (role, pytest.approx(share))


def test_taking_turns_is_limited_by_the_longer_turn():
    """Sync mode: one side waits while the other works, never both at once."""
    found = bottleneck({"a": actor(7, 3), "l": learner(2.9, 7)}, 10.0)

    assert (found.role, found.share) == (LimitedBy.ACTORS, pytest.approx(0.7))


def test_who_notes_no_waits_waits_whenever_it_does_nothing():
    """One process that plays inline, and notes the actor's part apart from the learner's."""
    found = bottleneck({"a": {"play": 1.0}, "l": {"learn": 8.7, "drain": 0.2}}, 10.0)

    assert (found.role, found.share) == (LimitedBy.LEARNER, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("totals", "role", "share"),
    [
        ({"play": 6.0, "write": 0.2, "learn": 3.0}, LimitedBy.ACTORS, 0.62),
        ({"play": 2.0, "learn": 6.0, "drain": 0.5, "publish": 0.5}, LimitedBy.LEARNER, 0.7),
        ({"play": 2.0, "learn": 3.0, "evaluate": 5.0}, LimitedBy.EVALUATOR, 0.5),
    ],
)
def test_a_process_that_does_everything_is_limited_by_its_longest_part(totals, role, share):
    found = bottleneck({"training": totals}, 10.0)

    assert (found.role, found.share) == (role, pytest.approx(share))


def test_an_evaluator_at_work_limits_no_process():
    totals = {"a": actor(9.9, 0), "l": learner(9.8, 0), "evaluator": {"evaluate": 10.0}}

    assert bottleneck(totals, 10.0).role is LimitedBy.NONE


def test_a_wait_must_be_noticeable():
    below, above = 10 * NOTICEABLE - 0.01, 10 * NOTICEABLE + 0.01

    assert bottleneck({"a": actor(10, 0), "l": learner(9, below)}, 10.0).role is LimitedBy.NONE
    assert bottleneck({"a": actor(10, 0), "l": learner(9, above)}, 10.0).role is LimitedBy.ACTORS


def test_shares_of_a_time_that_was_too_short_end_at_1():
    assert bottleneck({"l": learner(1, 3)}, 2.0).share == 1.0


def test_the_sentence_says_who_and_by_how_much():
    waits = bottleneck({"a": actor(10, 0), "l": learner(3.7, 6.2)}, 10.0)
    balanced = bottleneck({"a": actor(9.8, 0.1), "l": learner(9.6, 0.2)}, 10.0)

    assert waits.sentence == "limited by actors: the learner waits 62 % of the time"
    assert balanced.sentence == "balanced: no process waits for more than 2 % of the time"

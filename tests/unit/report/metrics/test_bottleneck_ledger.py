"""The ledger judges once everybody has been heard for long enough."""

from rookery.event import Counters, Traced
from rookery.report.metrics.bottleneck import ActivityLedger


def traced(process: str, seconds: float, **totals: float) -> Traced:
    return Traced(
        counters=Counters(),
        process=process,
        began=10.0,
        ended=10.0 + seconds,
        spans=(),
        totals=totals,
        amounts={},
        dropped=0,
    )


def test_nothing_is_said_before_everybody_was_heard_for_two_seconds() -> None:
    ledger = ActivityLedger(actors=1, alone=False)
    ledger.add(traced("learner", 5.0, wait=4.0, learn=1.0))
    ledger.add(traced("actor-0", 1.0, play=1.0))
    ledger.add(traced("evaluator", 5.0))

    assert ledger.verdict == ""


def test_a_learner_that_waits_is_limited_by_actors() -> None:
    ledger = ActivityLedger(actors=1, alone=False)
    ledger.add(traced("actor-0", 1.5, play=1.5))
    ledger.add(traced("actor-0", 1.5, play=1.5))
    ledger.add(traced("learner", 4.0, wait=3.0, learn=1.0))

    assert ledger.verdict == "limited by actors: the learner waits 75 % of the time"


def test_roles_of_one_process_are_judged_together() -> None:
    ledger = ActivityLedger(actors=1, alone=True)
    ledger.add(traced("actor-0", 4.0, play=1.0))
    ledger.add(traced("learner", 4.0, learn=3.0))

    assert ledger.verdict == "limited by learner: learning takes 75 % of the time"

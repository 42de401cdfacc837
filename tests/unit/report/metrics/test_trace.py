"""Trace: spans in order, joined where they touch, bounded; sums exact in any case."""

import pickle

import pytest

from rookery.event import Activity, Counters, Span
from rookery.report.metrics.trace import JOIN_S, Trace

PLAY, LEARN, WAIT = Activity.PLAY, Activity.LEARN, Activity.WAIT


def clock(*times):
    return iter(times).__next__


def test_spans_are_taken_in_order_and_once():
    trace = Trace("actor-0", now=clock(10.0, 20.0, 30.0))
    trace.note(PLAY, 11.0, 12.0, 64)
    trace.note(WAIT, 12.0, 15.0)
    trace.note(PLAY, 15.0, 16.0, 32)

    taken, rest = trace.take(Counters(96)), trace.take(Counters(96))

    assert (taken.process, taken.counters) == ("actor-0", Counters(96))
    assert (taken.began, taken.ended) == (10.0, 20.0)
    assert taken.spans == (Span(PLAY, 11, 12), Span(WAIT, 12, 15), Span(PLAY, 15, 16))
    assert taken.totals == {"play": 2.0, "wait": 3.0}
    assert taken.amounts == {"play": 96.0}
    assert (rest.spans, rest.totals, rest.amounts) == ((), {}, {})
    assert (rest.began, rest.ended) == (20.0, 30.0)


def test_the_same_activity_going_on_is_one_span():
    trace = Trace("learner")
    for began in (1.0, 2.0, 3.0):
        trace.note(LEARN, began, began + 1.0 - JOIN_S / 2, 1)

    taken = trace.take(Counters())

    assert taken.spans == (Span(LEARN, 1.0, 4.0 - JOIN_S / 2),)
    assert taken.totals["learn"] == pytest.approx(3 * (1 - JOIN_S / 2))
    assert taken.amounts == {"learn": 3.0}


@pytest.mark.parametrize(
    ("activity", "began"), [(LEARN, 2.0 + 2 * JOIN_S), (PLAY, 2.0)], ids=["a gap", "another"]
)
def test_other_spans_stay_apart(activity, began):
    trace = Trace("learner")
    trace.note(LEARN, 1.0, 2.0)
    trace.note(activity, began, 3.0)

    assert len(trace.take(Counters()).spans) == 2


def test_without_room_only_the_sums_grow():
    trace = Trace("actor-0", room=3)
    for i in range(10):
        trace.note(PLAY if i % 2 else WAIT, i, i + 1, 5)

    taken = trace.take(Counters())

    assert [span.began for span in taken.spans] == [0, 1, 2]
    assert taken.dropped == 7
    assert taken.totals == {"play": 5.0, "wait": 5.0}
    assert taken.amounts == {"play": 25.0, "wait": 25.0}


def test_a_span_is_not_joined_across_a_dropped_one():
    trace = Trace("actor-0", room=1)
    trace.note(PLAY, 0.0, 1.0)
    trace.note(WAIT, 1.0, 1.0 + JOIN_S / 4)
    trace.note(PLAY, 1.0 + JOIN_S / 4, 2.0)

    taken = trace.take(Counters())

    assert taken.spans == (Span(PLAY, 0.0, 1.0),)
    assert taken.dropped == 2


def test_after_a_mark_there_is_room_again():
    trace = Trace("actor-0", room=1)
    trace.note(PLAY, 0, 1)
    trace.take(Counters())
    trace.note(PLAY, 1, 2)

    assert trace.take(Counters()).spans == (Span(PLAY, 1, 2),)


def test_a_traced_event_travels_between_processes():
    trace = Trace("actor-0")
    trace.note(PLAY, 0, 1, 2)
    taken = trace.take(Counters(2))

    assert pickle.loads(pickle.dumps(taken)) == taken

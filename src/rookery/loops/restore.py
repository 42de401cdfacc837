"""A run's whole state: captured into a checkpoint's content, and put back from one."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from rookery.config.schema import Mode
from rookery.event import Counters, Evaluated, Event, Logged, Saved, Stopped, Warned
from rookery.loops.crew import Dealt
from rookery.loops.desk import Snapshot
from rookery.loops.hops import take_in
from rookery.loops.wiring import Parts
from rookery.manage.checkpoint import Content, Found, read_segments
from rookery.manage.saver import SEGMENT_BYTES, Saver
from rookery.replay.ring import row_bytes
from rookery.types import Array

RECORDED: dict[str, Any] = {
    kind.__name__: kind for kind in (Logged, Evaluated, Saved, Warned, Stopped)
}


def capture(
    parts: Parts,
    saver: Saver,
    *,
    driver: dict[str, Any],
    pending: Iterable[Snapshot],
    unwritten: Iterable[Event],
    interrupted: bool,
) -> Content:
    """Copies everything a run needs to go on. Environments that cannot be saved are cut first."""
    crew, exact = _crew_state(parts)
    exactly = (exact or not interrupted) and parts.config.run.mode is not Mode.ASYNC
    if parts.config.checkpoint.replay:
        _queue_rows(parts, saver)
    numbers: dict[str, Any] = {
        "counters": asdict(parts.counters),
        "driver": driver,
        "limiter": parts.limiter.state(),
    }
    arrays: dict[str, Array] = {}
    numbers["crew"], own = crew.numbers, crew.arrays
    arrays |= {f"crew:{name}": array for name, array in own.items()}
    for role, part in _stateful(parts).items():
        numbers[role], own = part.state()
        arrays |= {f"{role}:{name}": array for name, array in own.items()}
    numbers["board"], board = _board_state(parts)
    numbers["pending"], waiting = _pending_state(list(pending))
    numbers["unwritten"] = [
        [type(event).__name__, asdict(event)]
        for event in unwritten
        if type(event).__name__ in RECORDED  # each session starts, and is traced, for itself
    ]
    return Content(
        env_steps=parts.counters.env_steps,
        version=parts.board.version,
        exact=exactly and parts.config.checkpoint.replay,
        final=False,
        about={
            "counters": asdict(parts.counters),
            "spec": asdict(parts.spec),
            "replay": parts.config.checkpoint.replay,
        },
        weights={name: array.copy() for name, array in parts.learner.weights().items()},
        state=numbers,
        arrays=arrays | board | waiting,
    )


class Rest(NamedTuple):
    """What a checkpoint holds for those who drive the parts."""

    driver: dict[str, Any]
    pending: list[Snapshot]  # not judged yet
    unwritten: list[Event]  # perhaps not in the record


def put_back(parts: Parts, saver: Saver, found: Found) -> Rest:
    """Restores every part; returns the rest."""
    numbers, arrays = found.state(), found.arrays()
    parts.counters = Counters(**numbers["counters"])
    parts.learner.restore(numbers["learner"], _of("learner", arrays))
    if "actors" in numbers["crew"]:
        parts.crew.restore(numbers["crew"], _of("crew", arrays))
    if found.manifest["about"]["replay"]:
        parts.limiter.restore(numbers["limiter"])
        segments = found.segments()
        parts.pool.restore(numbers["pool"], _of("pool", arrays), read_segments(segments))
        saver.adopt(segments)
    parts.board.publish(_of("board", arrays), version=numbers["board"]["version"])
    parts.learner.advance(parts.share)
    pending = [
        Snapshot(
            Counters(**entry["counters"]),
            entry["version"],
            entry["wall_s"],
            entry["train_s"],
            _of(f"pending{i}", arrays),
        )
        for i, entry in enumerate(numbers["pending"])
    ]
    return Rest(numbers["driver"], pending, [_event(*saved) for saved in numbers["unwritten"]])


def flush_rows(parts: Parts, saver: Saver) -> None:
    """Writes rows early where a lot is unsaved, so that an interrupt never has much to write."""
    if not parts.config.checkpoint.replay:
        return
    unsaved = parts.pool.ring.committed - saver.saved_rows
    if unsaved * row_bytes(parts.pool.ring.schema) >= SEGMENT_BYTES:
        _queue_rows(parts, saver)


def _queue_rows(parts: Parts, saver: Saver) -> None:
    ring = parts.pool.ring
    first = max(saver.saved_rows, ring.oldest)
    saver.rows(first, parts.pool.rows_between(first, ring.committed))


def _stateful(parts: Parts) -> dict[str, Any]:
    return {"learner": parts.learner, "pool": parts.pool}


def _crew_state(parts: Parts) -> tuple[Dealt, bool]:
    """Returns the actors' state, and whether a run could go on from it exactly.

    In async they play on meanwhile: they begin anew, as their next incarnations.
    """
    if parts.config.run.mode is Mode.ASYNC:
        following = [incarnation + 1 for incarnation in parts.crew.incarnations]
        return Dealt({"incarnations": following}, {}, exact=False), False
    dealt = parts.crew.save()
    if dealt.exact:
        return dealt, True
    parts.crew.cut()
    take_in(parts)
    return parts.crew.save(), False


def _board_state(parts: Parts) -> tuple[dict[str, int], dict[str, Array]]:
    weights = parts.board.latest(0)
    assert weights is not None, "the wiring publishes before anybody plays"
    return (
        {"version": weights.version},
        {f"board:{name}": array for name, array in weights.arrays.items()},
    )


def _pending_state(pending: list[Snapshot]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    numbers = [
        {
            "counters": asdict(s.counters),
            "version": s.version,
            "wall_s": s.wall_s,
            "train_s": s.train_s,
        }
        for s in pending
    ]
    arrays = {
        f"pending{i}:{name}": array
        for i, s in enumerate(pending)
        for name, array in s.arrays.items()
    }
    return numbers, arrays


def _event(kind: str, fields: dict[str, Any]) -> Event:
    event: Event = RECORDED[kind](**fields | {"counters": Counters(**fields["counters"])})
    return event


def _of(role: str, arrays: dict[str, Array]) -> dict[str, Array]:
    prefix = f"{role}:"
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}

"""A run's whole state: captured into a checkpoint's content, and put back from one."""

from collections.abc import Iterable, Sequence
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
from rookery.replay.kept import Stretch
from rookery.replay.ring import row_bytes, schema_of
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
    pool = parts.pool.save(_saved(parts, saver))
    if parts.config.checkpoint.replay:
        _queue(saver, pool.unsaved)
    numbers: dict[str, Any] = {
        "counters": asdict(parts.counters),
        "driver": driver,
        "limiter": parts.limiter.state(),
    }
    arrays: dict[str, Array] = {}
    states = {
        "crew": (crew.numbers, crew.arrays),
        "learner": parts.learner.state(),
        "pool": (pool.numbers, pool.arrays),
    }
    if parts.opponents is not None:
        states["opponents"] = parts.opponents.state()
    for role, (own_numbers, own_arrays) in states.items():
        numbers[role] = own_numbers
        arrays |= {f"{role}:{name}": array for name, array in own_arrays.items()}
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
    if parts.opponents is not None:  # before the actors, who may be in games against them
        parts.opponents.restore(numbers["opponents"], _of("opponents", arrays))
    if "actors" in numbers["crew"]:
        parts.crew.restore(numbers["crew"], _of("crew", arrays))
    if found.manifest["about"]["replay"]:
        parts.limiter.restore(numbers["limiter"])
        segments = found.segments()
        shards = len(numbers["pool"].get("shards", [None]))
        parts.pool.resume(
            numbers["pool"],
            _of("pool", arrays),
            [read_segments(segments, shard) for shard in range(shards)],
        )
        recut = shards != len(parts.pool.extents)
        saver.adopt([] if recut else segments)  # rows of another cut have other numbers now
    parts.pool.version = parts.board.publish(
        _of("board", arrays), version=numbers["board"]["version"]
    )
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
    extents = parts.pool.extents
    unsaved = sum(e.committed - saver.saved_rows[i] for i, e in enumerate(extents))
    if unsaved * row_bytes(schema_of(parts.spec)) >= SEGMENT_BYTES:
        _queue(saver, parts.pool.unsaved(_saved(parts, saver)))


def _queue(saver: Saver, unsaved: Sequence[Stretch]) -> None:
    for shard, stretch in enumerate(unsaved):
        saver.rows(stretch.first, stretch.columns, shard)


def _saved(parts: Parts, saver: Saver) -> list[int]:
    return [saver.saved_rows[shard] for shard in range(len(parts.pool.extents))]


def _crew_state(parts: Parts) -> tuple[Dealt, bool]:
    """Returns the actors' state, and whether a run could go on from it exactly.

    In async they play on meanwhile: they begin anew, as their next incarnations, but for what
    their environments have told of their progress.
    """
    if parts.config.run.mode is Mode.ASYNC:
        following = [incarnation + 1 for incarnation in parts.crew.incarnations]
        told = parts.crew.progress.state()
        return Dealt({"incarnations": following, "progress": told}, {}, exact=False), False
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

"""The state of a whole run: copied for a checkpoint, and restored from a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from rookery.actors.actor_group import ActorGroupState
from rookery.checkpoints.checkpoint import Content, Segment, VerifiedCheckpoint, read_segments
from rookery.checkpoints.saver import SEGMENT_BYTES, Saver
from rookery.config.schema import Mode
from rookery.evaluation.evaluation_process import EvaluationSnapshot
from rookery.event import Counters, Evaluated, Event, Logged, Saved, Stopped, Warned
from rookery.replay.ring import row_bytes, schema_of
from rookery.replay.saved_rows import RowBlock, SavedReplay
from rookery.training.build import Parts
from rookery.training.steps import insert, progress
from rookery.types import Array, Arrays, Json, JsonObject, SavedState, below, prefixed

LOOKS = 16  # for unsaved rows, while as many bytes are collected as are written at once
RECORDED: dict[str, type[Logged | Evaluated | Saved | Warned | Stopped]] = {
    kind.__name__: kind for kind in (Logged, Evaluated, Saved, Warned, Stopped)
}


def capture(
    parts: Parts,
    saver: Saver,
    *,
    run: JsonObject,
    pending: Iterable[EvaluationSnapshot],
    unwritten: Iterable[Event],
    interrupted: bool,
) -> Content:
    """Returns a copy of the run's whole state, for a checkpoint.

    Episodes in progress are truncated first if the environments cannot export their state.
    """
    actors, exact = _actors_state(parts)
    exactly = (exact or not interrupted) and parts.config.run.mode is not Mode.ASYNC
    replay, saves_replay = parts.replay.save(_saved(parts, saver)), parts.config.checkpoint.replay
    if saves_replay:
        _queue(saver, replay.unsaved)
    weights, counters = parts.weight_store.latest(0), asdict(parts.counters)
    assert weights is not None, "`build_parts` publishes before any actor plays"
    reports, arrays = reports_state(pending, unwritten)
    states: dict[str, tuple[Json, Arrays]] = {
        "counters": (counters, {}),
        "run": (run, {}),
        "limiter": (parts.limiter.state(), {}),
        "actors": actors.to_checkpoint(),
        "learner": parts.learner.state(),
        "replay": (replay.numbers, replay.arrays),
        "weight_store": ({"version": weights.version}, weights.arrays),
    }
    if parts.opponents is not None:
        states["opponents"] = parts.opponents.state()
    for role, (_, own) in states.items():
        arrays |= prefixed(f"{role}:", own)
    return Content(
        env_steps=parts.counters.env_steps,
        version=parts.weight_store.version,
        exact=exactly and saves_replay,
        final=False,
        about={"counters": counters, "spec": asdict(parts.spec), "replay": saves_replay},
        weights={name: array.copy() for name, array in parts.learner.weights().items()},
        state={role: numbers for role, (numbers, _) in states.items()} | dict(reports),
        arrays=arrays,
    )


def reports_state(
    pending: Iterable[EvaluationSnapshot], unwritten: Iterable[Event]
) -> tuple[JsonObject, dict[str, Array]]:
    """Returns what a run owes its reports, for a checkpoint: JSON data, and arrays of weights.

    These are the snapshots that wait for evaluation, and the events that may not be logged yet.
    """
    entries: list[Json] = []
    arrays: dict[str, Array] = {}
    for i, snapshot in enumerate(pending):
        entry = {**snapshot._asdict(), "counters": asdict(snapshot.counters)}
        arrays |= prefixed(f"pending{i}:", entry.pop("arrays"))
        entries.append(entry)
    events: list[Json] = [
        [type(event).__name__, asdict(event)]
        for event in unwritten
        if type(event).__name__ in RECORDED  # each session starts, and is traced, for itself
    ]
    return {"pending": entries, "unwritten": events}, arrays


class Rest(NamedTuple):
    """The content of a checkpoint besides the states of learner, actors and replay.

    It is the state of the run itself (scores, times), the weights that wait for evaluation, the
    events that may be missing in the log, and the files of replay that the next checkpoint links.
    """

    run: SavedState
    segments: list[Segment]
    pending: list[EvaluationSnapshot]  # not evaluated yet
    unwritten: list[Event]  # perhaps not in the record


def put_back(parts: Parts, found: VerifiedCheckpoint) -> Rest:
    """Restores learner, actors and replay from a checkpoint; returns its other content (`Rest`).

    It writes no file: a run whose checkpoint does not fit leaves its folder as it was.
    """
    numbers, arrays = found.state(), found.arrays()
    parts.counters = Counters(**numbers["counters"])
    parts.learner.restore(numbers["learner"], below("learner:", arrays))
    if parts.opponents is not None:  # before the actors, who may be in games against them
        parts.opponents.restore(numbers["opponents"], below("opponents:", arrays))
    actors = ActorGroupState.from_checkpoint(numbers["actors"], below("actors:", arrays))
    if actors.actors:  # an async run saves no state of environments
        parts.actors.restore(actors)
    segments = _put_back_replay(parts, found, numbers, arrays)
    parts.replay.version = parts.weight_store.publish(
        below("weight_store:", arrays), version=numbers["weight_store"]["version"]
    )
    parts.learner.advance(progress(parts))
    return rest_of(numbers, arrays, segments)


def rest_of(numbers: SavedState, arrays: Mapping[str, Array], segments: list[Segment]) -> Rest:
    """Returns the state of the run itself from a checkpoint, and what `reports_state` saved."""
    pending = [
        EvaluationSnapshot(
            **{**entry, "counters": Counters(**entry["counters"])},
            arrays=below(f"pending{i}:", arrays),
        )
        for i, entry in enumerate(numbers["pending"])
    ]
    unwritten = [_event(*saved) for saved in numbers["unwritten"]]
    return Rest(numbers["run"], segments, pending, unwritten)


def _put_back_replay(
    parts: Parts, found: VerifiedCheckpoint, numbers: SavedState, arrays: dict[str, Array]
) -> list[Segment]:
    """Restores replay and rate limiter; returns the files of rows that the next checkpoint links.

    It links none, and all rows are saved again, if rows of damaged files were left out, or have
    other numbers now because replay has another number of shards. A rollout with lost rows is left
    out as a whole, as if it had not been saved.
    """
    if not found.manifest["about"]["replay"]:
        return []
    if found.damaged and parts.config.algo.on_policy:
        return []
    segments = found.segments()
    shards = len(numbers["replay"].get("shards", [None]))
    rows = [read_segments(segments, shard) for shard in range(shards)]
    parts.replay.resume(SavedReplay(numbers["replay"], below("replay:", arrays), rows))
    left = sum(extent.committed - extent.oldest for extent in parts.replay.extents)
    if not found.damaged or left - found.lost_rows >= parts.config.replay.learning_starts:
        parts.limiter.restore(numbers["limiter"])  # else learning starts again when it may
    return [] if found.damaged or shards != len(parts.replay.extents) else segments


def flush_period(parts: Parts) -> int:
    """Returns the env steps between two calls of `flush_rows`, which writes replay to disk.

    In that time about 4 MiB of new rows (stored env steps) are collected.
    """
    return max(1, SEGMENT_BYTES // (LOOKS * row_bytes(schema_of(parts.spec))))


def flush_rows(parts: Parts, saver: Saver) -> None:
    """Queues new replay rows (stored env steps) for writing to disk if they are at least 64 MiB.

    A checkpoint at an interrupt (Ctrl+C or SIGTERM) then never has much to write.
    """
    if not parts.config.checkpoint.replay:
        return
    extents = parts.replay.extents
    unsaved = sum(e.committed - saver.saved_rows[i] for i, e in enumerate(extents))
    if unsaved * row_bytes(schema_of(parts.spec)) >= SEGMENT_BYTES:
        _queue(saver, parts.replay.unsaved(_saved(parts, saver)))


def _queue(saver: Saver, unsaved: Sequence[RowBlock | None]) -> None:
    for shard, block in enumerate(unsaved):
        if block is not None:
            saver.rows(block.first, block.columns, shard)


def _saved(parts: Parts, saver: Saver) -> list[int]:
    return [saver.saved_rows[shard] for shard in range(len(parts.replay.extents))]


def _actors_state(parts: Parts) -> tuple[ActorGroupState, bool]:
    """Returns the actors' state, and whether a run resumed from it continues exactly.

    In async mode actors continue to play meanwhile. The state then only contains their restart
    counts and the environment state that outlives episodes, such as a curriculum level; a resumed
    run starts new episodes.
    """
    if parts.config.run.mode is Mode.ASYNC:
        actors = parts.actors.asynchronous()
        assert actors is not None, "`build_parts` makes them for `run.mode` async"
        return actors.successors(), False
    state = parts.actors.save()
    if state.exact:
        return state, True
    parts.actors.cut()
    insert(parts)
    return parts.actors.save(), False


def _event(kind: str, fields: SavedState) -> Event:
    event: Event = RECORDED[kind](**{**fields, "counters": Counters(**fields["counters"])})
    return event

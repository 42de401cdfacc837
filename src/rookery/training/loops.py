"""Training loops, made of the steps in `training/steps.py`. They yield events without end.

Sync: all actors play a chunk (`actor.chunk` env steps, or `actor.chunk_episodes` whole episodes),
the learner learns as often as the rate limiter (samples per insert) allows, then all actors pull
the weights. Single mode is this loop with one actor in the learner's process. Since learning comes
first, a run may stop after any event and resume exactly there. The result depends only on the
settings and the seed, not on timing or on the process of an actor: env steps are inserted in the
order of actors, and no actor plays while the learner learns.

Device: the sync loop, with environments, replay and learner on one device. The rate limiter counts
steps per agent: one step of eight agents counts as eight. Actors use the learner's own weights;
weights are published only for evaluation and checkpoints.

Async: actors play continuously, while the learner trains on the steps that arrived. Only the rate
limiter pauses actors. The learner moves the actors' new env steps into replay, trains while the
rate limiter allows it, and checks for new env steps every 5 ms. If the rate limiter allows no
batch, the learner waits for env steps, at most `run.window_s` seconds.
"""

import time
from collections.abc import Callable, Iterator

import torch

from rookery.actors.actor_group import AsyncActors, epsilons_of
from rookery.config.schema import Mode
from rookery.errors import LostError
from rookery.event import Activity, Collected, Episode, Event, IterationEnded
from rookery.training.build import Parts
from rookery.training.steps import collect, count, epsilon_now, insert, learn

TURN_S = 0.005  # of learning between two polls of the transport rings
REPORTS_S = 0.02  # between two polls for reports: each costs a system call per actor


def sync(parts: Parts) -> Iterator[Event]:
    """Training loop in which actors and learner take turns (`run.mode` single and sync)."""
    while True:
        while parts.limiter.ready():
            yield learn(parts)
        yield IterationEnded(parts.counters)
        yield collect(parts)


def on_device(parts: Parts) -> Iterator[Event]:
    """Training loop of device mode; raises LostError with advice if the device has no memory."""
    try:
        yield from sync(parts)
    except torch.OutOfMemoryError as error:
        device = parts.config.device
        raise LostError(
            f"{parts.learner.device} ran out of memory; lower device.agents ({device.agents}), "
            f"device.rows ({device.rows}) or replay.batch_size "
            f"({parts.config.replay.batch_size}), and resume from the last checkpoint"
        ) from error


def asynchronous(parts: Parts) -> Iterator[Event]:
    """Training loop of async mode: actors play while the learner trains."""
    actors = parts.actors.asynchronous()
    assert actors is not None, "`build_parts` makes them for `run.mode` async"
    actors.start()
    looked = 0.0
    while True:
        now = time.monotonic()
        listen = now - looked >= REPORTS_S
        looked = now if listen else looked
        yield bring_in(parts, actors, listen=listen)
        if not parts.limiter.ready() and not over(parts):
            wait(parts, actors)
        until = time.monotonic() + TURN_S
        while parts.limiter.ready() and (over(parts) or time.monotonic() < until):
            yield learn(parts)
        yield IterationEnded(parts.counters)


def over(parts: Parts) -> bool:
    """Returns whether the run has collected `run.env_steps`.

    From then on actors stay paused, and the learner takes its last gradient steps on what replay
    holds.
    """
    return parts.counters.env_steps >= parts.config.run.env_steps


def bring_in(parts: Parts, actors: AsyncActors, *, listen: bool) -> Collected:
    """Inserts the actors' new env steps into replay, then lets all actors play or pauses them.

    Actors pause while the rate limiter (samples per insert) blocks, and after `run.env_steps`.
    Until the next call they may write as many steps as these two limits leave. With `listen` it
    also reads the messages in which actors report their finished episodes.
    """
    inserted = insert(parts)
    if inserted.count:
        parts.freshness.seen(parts.replay.newest_version(inserted))
    ended = list[Episode]()
    for report in actors.reports() if listen else ():
        ended += report.ended
        if report.traced is not None:
            parts.traced.append(report.traced)
    epsilon = epsilon_now(parts)
    collected = count(parts, inserted.steps, ended, epsilon, parts.freshness.version)
    go = parts.limiter.may_insert() and not over(parts)
    room = min(parts.limiter.room, parts.config.run.env_steps - parts.counters.env_steps)
    actors.allow(go, epsilons_of(epsilon, parts.config), max(1, room))
    return collected


def wait(parts: Parts, actors: AsyncActors) -> None:
    """Waits for the env steps that the rate limiter needs for a batch, at most `run.window_s`.

    It may return earlier, with fewer env steps.
    """
    began = time.monotonic()
    left = parts.config.run.env_steps - parts.counters.env_steps
    actors.wait(parts.config.run.window_s, min(parts.limiter.missing, left))
    parts.trace.note(Activity.WAIT, began, time.monotonic())


LOOPS: dict[Mode, Callable[[Parts], Iterator[Event]]] = {
    Mode.SINGLE: sync,  # with one actor, in the learner's process
    Mode.SYNC: sync,
    Mode.ASYNC: asynchronous,
    Mode.DEVICE: on_device,
}

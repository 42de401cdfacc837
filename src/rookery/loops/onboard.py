"""The loop on a device: worlds, replay and learner in one place, and nobody waits for the host.

A turn is: learn as much as the limiter allows, play a stretch. Rows are counted by agent here: a
step of eight agents is eight of them. All play with the weights as they are; a version is published
for whoever judges or saves it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import torch

from rookery.errors import LostError
from rookery.event import Activity, Collected, Event, Learned, Turned
from rookery.learner import Recorded
from rookery.loops.herd import Herd, Tapes
from rookery.loops.hops import count, publish
from rookery.loops.wiring import Parts


def onboard(parts: Parts) -> Iterator[Event]:
    """Yields what happens, for ever: whoever consumes the events decides when to stop."""
    tapes = cast(Tapes, parts.pool)
    while True:
        while tapes.ready and parts.limiter.ready():
            yield _within_memory(learn, parts)
        yield Turned(parts.counters)
        yield _within_memory(play, parts)


def _within_memory(hop: Callable[[Parts], Event], parts: Parts) -> Event:
    try:
        return hop(parts)
    except torch.OutOfMemoryError as error:
        device = parts.config.device
        raise LostError(
            f"{parts.learner.device} ran out of memory; lower device.agents ({device.agents}), "
            f"device.rows ({device.rows}) or replay.batch ({parts.config.replay.batch}), and go on "
            "from the last checkpoint"
        ) from error


def learn(parts: Parts) -> Learned:
    """Draws, learns, reranks; publishes where it is due."""
    began = time.monotonic()
    tapes, learner, size = cast(Tapes, parts.pool), parts.learner, parts.config.replay.batch
    batch = tapes.draw(size, beta=parts.beta)
    parts.limiter.draw(size * parts.config.algo.learned)
    facts = learner.learn(batch)
    tapes.rerank(facts.td_error)
    if learner.due():
        publish(parts)
    parts.counters = replace(parts.counters, learner_steps=learner.learner_steps)
    parts.trace.note(Activity.LEARN, began, time.monotonic(), 1)
    return Learned(parts.counters, facts)


def play(parts: Parts) -> Collected:
    """Plays a stretch of all worlds."""
    began, epsilon = time.monotonic(), parts.epsilon_now
    played = cast(Herd, parts.crew).play(epsilon)
    cast(Recorded, parts.learner).look()
    parts.limiter.insert(played.agent_steps)
    parts.trace.note(Activity.PLAY, began, time.monotonic(), played.env_steps)
    return count(parts, played.env_steps, played.ended, epsilon, parts.board.version)

"""The sync loop: all actors play a chunk, the learner learns, then all actors pull the weights.

A chunk is `actor.chunk` env steps, or `actor.chunk_episodes` whole episodes. Single mode is this
loop with one actor in the learner's process. Each iteration learns as often as the rate limiter
(samples per insert) allows, then all actors play a chunk. Since learning comes first, a run may
stop after any event and resume exactly there.

The result depends only on the settings and the seed, not on timing or on the process of an actor:
env steps are inserted in the order of actors, and no actor plays while the learner learns.
"""

from collections.abc import Iterator

from rookery.event import Event, IterationEnded
from rookery.training.build import Parts
from rookery.training.steps import collect, learn


def sync(parts: Parts) -> Iterator[Event]:
    """Training loop in which actors and learner take turns (`run.mode` single and sync).

    Yields events without end; the caller stops it.
    """
    while True:
        while parts.limiter.ready():
            yield learn(parts)
        yield IterationEnded(parts.counters)
        yield collect(parts)

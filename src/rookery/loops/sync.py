"""The sync loop: all actors play a chunk, then the learner learns, then all get the weights.

The single loop is this one with one actor in the learner's own process. A turn is: learn as much as
the limiter allows, play a chunk. A run may be stopped after any event and goes on exactly there,
because learning comes first.

The result is a function of the settings and the seed, never of timing or of where actors live: rows
are drained in the actors' order, and nobody plays while the learner learns.
"""

from collections.abc import Iterator

from rookery.event import Event, Turned
from rookery.loops.hops import learn, play
from rookery.loops.wiring import Parts


def sync(parts: Parts) -> Iterator[Event]:
    """Yields what happens, for ever: whoever consumes the events decides when to stop."""
    while True:
        while parts.limiter.ready():
            yield learn(parts)
        yield Turned(parts.counters)
        yield play(parts)

"""The async loop: nobody waits for anybody.

Actors play by themselves, wherever they live, and wait for the limiter alone. The learner takes in
what they have written, learns while the limiter allows it, and looks around every few milliseconds.
Where the limiter says no it waits for rows, `run.window_s` at the longest.
"""

import time
from collections.abc import Iterator

from rookery.event import Activity, Collected, Episode, Event, Turned
from rookery.loops.crew import rungs
from rookery.loops.hops import count, learn, take_in
from rookery.loops.wiring import Parts

TURN_S = 0.005  # of learning between two looks at the transport rings
NEWS_S = 0.02  # between two looks for messages: each costs a system call for each actor


def asynchronous(parts: Parts) -> Iterator[Event]:
    """Yields what happens, for ever: whoever consumes the events decides when to stop."""
    parts.crew.roam()
    heard = 0.0
    while True:
        now = time.monotonic()
        listen = now - heard >= NEWS_S
        heard = now if listen else heard
        yield bring_in(parts, listen=listen)
        if not parts.limiter.ready() and not over(parts):
            wait(parts)
        until = time.monotonic() + TURN_S
        while parts.limiter.ready() and (over(parts) or time.monotonic() < until):
            yield learn(parts)
        yield Turned(parts.counters)


def over(parts: Parts) -> bool:
    """Has everything been played? Then what was played is learned from to the end."""
    return parts.counters.env_steps >= parts.config.run.env_steps


def bring_in(parts: Parts, *, listen: bool) -> Collected:
    """Takes in rows, and messages where it is time for them, and opens or closes the gates."""
    drained = take_in(parts)
    if drained.count:
        parts.freshness.seen(parts.pool.newest_version(drained))
    ended = list[Episode]()
    for report in parts.crew.news() if listen else ():
        ended += report.ended
        parts.keep(report.traced)
    epsilon = parts.epsilon_now
    collected = count(parts, drained.steps, ended, epsilon, parts.freshness.version)
    go = parts.limiter.may_insert() and not over(parts)
    parts.crew.allow(go, rungs(epsilon, parts.config), parts.limiter.room)
    return collected


def wait(parts: Parts) -> None:
    """Waits for rows, no longer than the window: best for all that is missing, up to the end."""
    began = time.monotonic()
    left = parts.config.run.env_steps - parts.counters.env_steps
    parts.crew.wait(parts.config.run.window_s, min(parts.limiter.missing, left))
    parts.trace.note(Activity.WAIT, began, time.monotonic())

"""The single loop: one actor, one learner, one process. The whole data path on one screen.

A turn is: learn as much as the limiter allows, pull, play a chunk. A run may be stopped after any
event and goes on exactly there, because learning comes first.
"""

from collections.abc import Iterator
from dataclasses import replace

from rookery.event import Collected, Event, Learned, Turned
from rookery.loops.wiring import Parts


def single(parts: Parts) -> Iterator[Event]:
    """Yields what happens, for ever: whoever consumes the events decides when to stop."""
    while True:
        while parts.limiter.ready():
            yield learn(parts)
        if parts.actor.due():
            parts.actor.pull(parts.board)
        yield Turned(parts.counters)
        yield play(parts)


def learn(parts: Parts) -> Learned:
    """Hops 4 to 8: choose, fold, learn, rerank, publish."""
    config, pool, learner = parts.config, parts.pool, parts.learner
    batch = pool.draw(config.replay.batch, beta=parts.beta)
    parts.limiter.draw(config.replay.batch)
    facts = learner.learn(batch)
    if facts.td_error is not None:  # None: the step was skipped
        pool.rerank(batch.rows, facts.td_error)
        if learner.due():
            parts.board.publish(learner.weights())
    parts.counters = replace(parts.counters, learner_steps=learner.learner_steps)
    return Learned(parts.counters, facts)


def play(parts: Parts) -> Collected:
    """Hops 1 to 3: play a chunk, drain it, tell the limiter."""
    config, counters = parts.config, parts.counters
    epsilon = parts.epsilon.at(counters.env_steps / config.actor.epsilon_steps)
    left = config.run.env_steps - counters.env_steps
    played = parts.actor.collect(max(1, min(config.actor.chunk, left)), epsilon)
    take_in(parts)
    parts.counters = replace(
        counters,
        env_steps=counters.env_steps + played.env_steps,
        episodes=counters.episodes + len(played.ended),
    )
    parts.learner.advance(parts.share)
    return Collected(parts.counters, played.ended, epsilon, parts.actor.version)


def take_in(parts: Parts) -> None:
    """Drains the transport rings and lets everybody know who counts rows."""
    drained = parts.pool.drain()
    parts.limiter.insert(drained.steps)
    if parts.config.env.normalize_obs or parts.config.env.normalize_reward:
        parts.learner.observe(
            parts.pool.observations_between(drained.first, drained.count),
            parts.pool.returns_between(drained.first, drained.count),
        )

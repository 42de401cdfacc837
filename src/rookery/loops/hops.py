"""The data path's hops as code. Loops differ only in the order they take them, and in who waits.

    1 play    2 drain    3 allow    4 choose    5 fold    6 learn    7 rerank    8 publish    9 pull

Everything here happens in the learner's process, but for playing and pulling, which actors do
wherever they live (`player.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from rookery.config.schema import Engine
from rookery.event import Activity, Collected, Counters, Episode, Learned
from rookery.loops.crew import rungs
from rookery.loops.wiring import Parts
from rookery.replay.pool import Drained
from rookery.selfplay.opponents import OpponentManager
from rookery.types import Learned as Facts


def learn(parts: Parts) -> Learned:
    """Hops 4 to 8: choose, fold, learn, rerank, publish."""
    began = time.monotonic()
    config, pool, learner = parts.config, parts.pool, parts.learner
    member, size = parts.member, config.replay.batch
    batch = member.draw(pool, size, parts.beta) if member else pool.draw(size, beta=parts.beta)
    taken = batch.rows.size if config.algo.on_policy else size  # a rollout's last batch is smaller
    parts.limiter.draw(taken * config.algo.learned)
    facts = learner.learn(batch)
    if facts.td_error is not None:
        if member:
            member.rerank(pool, batch.rows, facts.td_error)
        else:
            pool.rerank(batch.rows, facts.td_error)
    if due(parts, facts):
        publish(parts)
    if parts.opponents is not None and parts.opponents.due(learner.learner_steps):
        keep_snapshot(parts, parts.opponents)
    done = parts.counters
    parts.counters = Counters(done.env_steps, learner.learner_steps, done.episodes)
    parts.trace.note(Activity.LEARN, began, time.monotonic(), 1)
    return Learned(parts.counters, facts)


def due(parts: Parts, facts: Facts) -> bool:
    """Is it time to publish? Once rollouts are used up; else by count, not after a skipped step."""
    if parts.config.algo.on_policy:
        return not parts.limiter.ready()
    return bool(facts.metrics) and parts.learner.due()


def publish(parts: Parts) -> None:
    """Hop 8, where it is not too early for it."""
    began = time.monotonic()
    if began - parts.published_at < parts.publish_interval_s:
        return
    parts.published_at = began
    parts.pool.version = parts.board.publish(parts.published())
    parts.freshness.published(parts.pool.version)
    parts.trace.note(Activity.PUBLISH, began, time.monotonic(), 1)


def keep_snapshot(parts: Parts, opponents: OpponentManager) -> None:
    """Makes the present weights an opponent: the version that is published now."""
    opponents.keep(
        parts.board.version + 1,
        parts.learner.weights(),
        learner_steps=parts.learner.learner_steps,
        env_steps=parts.counters.env_steps,
    )
    parts.published_at = float("-inf")  # it is never too early for this one
    publish(parts)


def play(parts: Parts) -> Collected:
    """Hops 1 to 3 and 9: every actor pulls where it is due and plays a chunk; that is drained."""
    config, env_steps = parts.config, 0
    left = config.run.env_steps - parts.counters.env_steps
    chunk = max(1, min(config.actor.chunk, -(-left // config.actor.num)))
    epsilon, ended, version = parts.epsilon_now, list[Episode](), parts.board.version
    began = time.monotonic()
    for reports in parts.crew.play(chunk, rungs(epsilon, config), config.actor.chunk_episodes):
        if config.engine is not Engine.INLINE:
            parts.trace.note(Activity.WAIT, began, time.monotonic())
        env_steps += take_in(parts).steps  # what of a lost actor's never arrived does not count
        began = time.monotonic()
        for report in reports:
            ended += report.ended
            version = min(version, report.version)
            parts.keep(report.traced)
    return count(parts, env_steps, ended, epsilon, version)


def count(
    parts: Parts, env_steps: int, ended: Sequence[Episode], epsilon: float, version: int
) -> Collected:
    """Counts what was played."""
    if parts.opponents is not None:
        for episode in ended:
            parts.opponents.record(int(episode.info["opponent"]), episode.info["points"])
    parts.counters = replace(
        parts.counters,
        env_steps=parts.counters.env_steps + env_steps,
        episodes=parts.counters.episodes + len(ended),
    )
    parts.learner.advance(parts.share)
    return Collected(parts.counters, tuple(ended), epsilon, version)


def take_in(parts: Parts) -> Drained:
    """Hops 2 and 3: drains the transport rings and tells everybody who counts rows."""
    began = time.monotonic()
    drained = parts.pool.drain()
    parts.limiter.insert(drained.steps)
    if parts.config.env.normalize_obs or parts.config.env.normalize_reward:
        parts.learner.observe(*parts.pool.observed(drained))
    if drained.count:
        if parts.member:
            parts.member.beat()
        parts.trace.note(Activity.DRAIN, began, time.monotonic(), drained.count)
    return drained

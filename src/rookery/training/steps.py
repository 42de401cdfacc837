"""The steps of a training loop; sync and async mode differ in order and waiting.

    1 collect   2 insert   3 allow   4 sample   5 fold   6 learn   7 update priorities
    8 publish   9 pull

Step 3 is the rate limiter (samples per insert). Step 5 computes n-step returns or sequences. All
steps happen in the learner's process, except collecting and pulling weights, which actors do in
their own processes (`actors/actor.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from rookery.config.schema import Config, Engine, Mode
from rookery.envs.turn_based.opponents import Opponents
from rookery.event import Activity, Collected, Counters, Episode, Learned
from rookery.replay.replay import Inserted
from rookery.training.build import Parts
from rookery.types import LearnResult

CLOCKED = (Mode.ASYNC, Mode.DEVICE)  # modes whose result may depend on the clock
REMOTE_PUBLISH_S = 0.05  # between two versions, at least, where they go to other hosts


def learn(parts: Parts) -> Learned:
    """Takes one gradient step: samples a batch, learns, updates priorities, publishes weights.

    Weights are published only when `due` returns True. In self-play it also adds the weights to the
    opponents from time to time.
    """
    began = time.monotonic()
    config, replay, learner = parts.config, parts.replay, parts.learner
    peers, size, beta = parts.peers, config.replay.batch_size, beta_now(parts)
    batch = peers.sample(replay, size, beta) if peers else replay.sample(size, beta=beta)
    taken = batch.rows.size if config.algo.on_policy else size  # a rollout's last batch is smaller
    parts.limiter.sample(taken * parts.steps_per_row)
    result = learner.learn(batch)
    if result.td_error is not None:
        if peers:
            peers.update_priorities(replay, batch.rows, result.td_error)
        else:
            replay.update_priorities(batch.rows, result.td_error)
    if config.algo.on_policy and result.metrics and learner.algorithm.ends_rollout(result.metrics):
        parts.limiter.skip_rest()
    if due(parts, result):
        publish(parts)
    if parts.opponents is not None and parts.opponents.due(learner.learner_steps):
        keep_snapshot(parts, parts.opponents)
    done = parts.counters
    parts.counters = Counters(done.env_steps, learner.learner_steps, done.episodes)
    parts.trace.note(Activity.LEARN, began, time.monotonic(), 1)
    return Learned(parts.counters, result)


def due(parts: Parts, result: LearnResult) -> bool:
    """Returns whether the learner should publish its weights now.

    An on-policy learner publishes once its rollouts are used up. An off-policy learner publishes
    every few learner steps, but not if it knows that it has just skipped an update because the loss
    or gradient was not finite.
    """
    if parts.config.algo.on_policy:
        return not parts.limiter.ready()
    return bool(result.metrics) and parts.learner.due()


def publish(parts: Parts) -> None:
    """Publishes the learner's weights to the actors.

    Does nothing if the last publication is less than `publish_interval_s` ago.
    """
    began = time.monotonic()
    if began - parts.published_at < publish_interval_s(parts.config):
        return
    parts.published_at = began
    if not (parts.config.algo.on_policy and parts.limiter.ready()):  # a rollout is learned from
        parts.learner.adopt_statistics()
    weights = parts.learner.weights()
    if parts.opponents is not None:  # actors also learn whom to play against
        weights = weights | parts.opponents.announcement()
    parts.replay.version = parts.weight_store.publish(weights)
    if parts.config.run.mode is Mode.ASYNC:  # elsewhere actors pull at known steps
        parts.freshness.published(parts.replay.version)
    parts.trace.note(Activity.PUBLISH, began, time.monotonic(), 1)


def publish_interval_s(config: Config) -> float:
    """Returns the minimum seconds between two publications of weights; 0 except in async mode."""
    if config.run.mode is not Mode.ASYNC:
        return 0.0
    least = REMOTE_PUBLISH_S if config.engine is Engine.RAY else 0.0
    return max(least, config.learner.publish_min_interval_s)


def keep_snapshot(parts: Parts, opponents: Opponents) -> None:
    """Adds a snapshot of the current weights to the self-play opponents; publishes the weights."""
    opponents.keep(
        parts.weight_store.version + 1,
        parts.learner.weights(),
        learner_steps=parts.learner.learner_steps,
        env_steps=parts.counters.env_steps,
    )
    parts.published_at = float("-inf")  # publish at once
    publish(parts)


def collect(parts: Parts) -> Collected:
    """Makes all actors load new weights and play, and inserts their env steps into replay.

    Each actor plays `actor.chunk` env steps, or `actor.chunk_episodes` whole episodes.
    """
    config, env_steps = parts.config, 0
    left = config.run.env_steps - parts.counters.env_steps
    chunk = max(1, min(config.actor.chunk, -(-left // config.actor.num)))
    epsilon, ended, version = epsilon_now(parts), list[Episode](), parts.weight_store.version
    began = time.monotonic()
    epsilons = [epsilon**power for power in parts.epsilon_powers]
    episodes = config.actor.chunk_episodes
    for reports in parts.actors.collect(chunk, epsilons, episodes):
        if not parts.inline:
            parts.trace.note(Activity.WAIT, began, time.monotonic())
        env_steps += insert(parts).steps  # rows of a lost actor that never arrived do not count
        began = time.monotonic()
        for report in reports:
            ended += report.ended
            version = min(version, report.version)
            if report.traced is not None:
                parts.traced.append(report.traced)
    return count(parts, env_steps, ended, epsilon, version)


def count(
    parts: Parts, env_steps: int, ended: Sequence[Episode], epsilon: float, version: int
) -> Collected:
    """Adds env steps and ended episodes to the run's counters; returns the `Collected` event.

    In self-play it also records the results of the games.
    """
    if parts.opponents is not None:
        for episode in ended:
            parts.opponents.record(int(episode.info["opponent"]), episode.info["points"])
    parts.counters = replace(
        parts.counters,
        env_steps=parts.counters.env_steps + env_steps,
        episodes=parts.counters.episodes + len(ended),
    )
    parts.learner.count_skipped()
    parts.learner.advance(progress(parts))
    return Collected(parts.counters, tuple(ended), epsilon, version)


def insert(parts: Parts) -> Inserted:
    """Inserts the actors' new env steps into replay.

    It also reports their number to the rate limiter, and updates the normalization statistics.
    """
    began = time.monotonic()
    inserted = parts.replay.insert()
    several = inserted.agent_steps  # with several agents in an environment, the steps of each count
    parts.limiter.insert(inserted.steps if several is None else several)
    if parts.config.env.normalize_obs or parts.config.env.normalize_reward:
        observed = parts.replay.observed(inserted)
        if observed is not None:
            parts.learner.observe(*observed)
    if inserted.count:
        if parts.peers:
            parts.peers.beat()
        parts.trace.note(Activity.DRAIN, began, time.monotonic(), inserted.count)
    return inserted


def progress(parts: Parts) -> float:
    """Returns the progress of the run, 0 to 1, towards the limit that will be reached first.

    The limit of minutes counts only in async and device mode, which are not reproducible bit for
    bit.
    """
    run, done = parts.config.run, parts.counters
    limits: list[tuple[float, float | None]] = [
        (done.env_steps, run.env_steps),
        (done.episodes, run.episodes),
    ]
    if run.mode in CLOCKED:
        limits.append((parts.minutes, run.minutes))
    return min(1.0, max(value / limit for value, limit in limits if limit is not None))


def beta_now(parts: Parts) -> float:
    """Returns the current beta, the exponent of importance weights in prioritised replay."""
    replay = parts.config.replay
    return replay.beta + (replay.beta_end - replay.beta) * progress(parts)


def epsilon_now(parts: Parts) -> float:
    """Returns the run's present exploration epsilon, from which each actor's epsilon is derived."""
    return parts.epsilon.at(parts.counters.env_steps / parts.epsilon_steps)

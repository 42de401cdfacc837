"""Cycles: every worker plays some episodes, then the learner learns, then all get the weights.

    agent = train_dqn(n_episodes=2_000, num_workers=4, callback=print)
    agent.act(obs)

One cycle: publish weights and epsilon; each worker plays its episodes; they are taken in; learn;
decay epsilon once. It is the sync loop with whole episodes for chunks, a number of learner steps
that is fixed where the limiter would decide, and an epsilon that falls by cycles. No run folder, no
checkpoints, no evaluator: `rookery.train` has those.

A game is played against others: random ones, scripted ones, and what the agent was earlier.
"""

import contextlib
import itertools
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rookery.config.schema import Config, Decay
from rookery.envs.make import check
from rookery.envs.spaces import Codec
from rookery.envs.tables import Tables
from rookery.errors import ConfigError, EnvError, StalledError
from rookery.event import Ask, Learned
from rookery.learner import Learner
from rookery.loops.agent import DqnAgent
from rookery.loops.estimate import (
    crowding,
    estimate,
    refuse_descriptors,
    refuse_devices,
    refuse_memory,
)
from rookery.loops.hops import learn, play, publish
from rookery.loops.rollout import NONE, Recipe, checked, recipe
from rookery.loops.wiring import Parts, wire
from rookery.manage import machine
from rookery.schedule import Schedule
from rookery.types import EnvSpec

WINDOW = 100  # episodes in the mean return
PER_EPISODE = 0.999  # what an episode multiplies epsilon with, unless told otherwise
ENDLESS = 1 << 62  # env steps, learner steps: a limit that is not one
ARGUMENTS = {  # setting → the argument that decides about it
    "run.engine": "engine",
    "run.seed": "seed",
    "run.episodes": "n_episodes",
    "algo.gamma": "gamma",
    "algo.n_step": "n_step",
    "algo.target_period": "target_period",
    "net.hidden": "hidden",
    "replay.batch": "batch_size",
    "replay.capacity": "buffer_size",
    "replay.warmup": "warmup",
    "replay.draw": "prioritized",
    "actor.num": "num_workers",
    "actor.chunk_episodes": "episodes_per_batch",
    "actor.epsilon": "epsilon",
    "actor.epsilon_end": "epsilon_end",
    "learner.lr": "lr",
    "learner.device": "device",
}
FIXED: dict[str, Any] = {
    "algo.name": "dqn",
    "run.mode": "sync",
    "run.env_steps": ENDLESS,
    "actor.pull_period": 1,
    "learner.publish_period": ENDLESS,  # each cycle publishes
}
USUAL: dict[str, Any] = {"algo.dueling": True, "actor.envs": 1}  # unless told otherwise
SNAPSHOT = 10_000  # episodes between two snapshots of a game's player
COMPANY: dict[str, Any] = {  # of a game, unless told otherwise
    "selfplay.keep": 10,
    "selfplay.drop": "oldest",
    "selfplay.newest": 5,
    "selfplay.slips": 0.5,
}

Steps: TypeAlias = int | Literal["adaptive"] | None  # as the limiter allows; one for each episode


class Cycle(NamedTuple):
    """How far training is after a cycle."""

    cycle: int  # from 1
    episodes: int
    env_steps: int
    learner_steps: int
    epsilon: float  # the share of random actions in this cycle
    mean_return: float  # of the last 100 episodes
    loss: float  # mean of this cycle's learner steps; nan before the first
    seconds: float  # since the first cycle began


class Plan(NamedTuple):
    """What a cycle does beyond what the config says, and when to stop."""

    steps: Steps  # learner steps
    decay: float | None  # what epsilon is multiplied with after each cycle; none: by episodes
    target: float | None
    max_seconds: float | None
    callback: Callable[[Cycle], Any] | None

    def over(self, done: Cycle, config: Config) -> bool:
        """Has one of the limits been reached?"""
        played = done.episodes >= (config.run.episodes or 0)
        solved = self.target is not None and done.mean_return >= self.target
        late = self.max_seconds is not None and done.seconds >= self.max_seconds
        return played or (solved and done.episodes >= WINDOW) or late

    def fall(self, episodes: int) -> float:
        """Returns what epsilon is multiplied with after a cycle of so many episodes."""
        return PER_EPISODE**episodes if self.decay is None else self.decay


@checked
def train_dqn(
    n_episodes: int = 50_000,
    num_workers: int | None = None,
    episodes_per_batch: int = 4,
    learning_steps_per_batch: Steps = None,
    batch_size: int = 64,
    buffer_size: int = 100_000,
    device: str = "auto",
    env: Any = "CartPole-v1",
    seed: int | None = None,
    *,
    gamma: float = 0.99,
    lr: float = 1e-3,
    hidden: Sequence[int] = (256, 256),
    n_step: int = 1,
    prioritized: bool = True,
    target_period: int = 500,
    warmup: int | None = None,
    epsilon: float = 1.0,
    epsilon_end: float = 0.05,
    epsilon_decay: float | None = None,
    engine: str = "processes",
    target: float | None = None,
    max_seconds: float | None = None,
    callback: Callable[[Cycle], Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] = NONE,
) -> DqnAgent:
    """Trains a DQN agent with `num_workers` processes that play, and returns it.

    Ends after the cycle in which `n_episodes` are reached, the mean return of the last 100 episodes
    reaches `target`, `max_seconds` are over, or `callback` returned `Ask.STOP`. The result is a
    function of the arguments, `seed` and `num_workers` among them, where no clock ended it. Ctrl+C
    ends all workers and raises KeyboardInterrupt. docs/train-dqn.md explains every parameter.
    """
    arguments = {**locals()}  # a copy: a debugger refreshes the other one
    workers = max(1, machine.cores() - 2) if num_workers is None else num_workers
    arguments |= {
        "num_workers": workers,
        "seed": _fresh_seed() if seed is None else seed,
        "warmup": batch_size if warmup is None else warmup,
        "prioritized": "prioritized" if prioritized else "uniform",
    }
    plan = Plan(
        steps=learning_steps_per_batch,
        decay=epsilon_decay,
        target=target,
        max_seconds=max_seconds,
        callback=callback,
    )
    _refuse_odd(plan)
    return _train(*_recipe(env, arguments, settings), plan, weights)


def _refuse_odd(plan: Plan) -> None:
    odd = isinstance(plan.steps, int) and plan.steps < 0
    if odd or (plan.decay is not None and not 0 < plan.decay <= 1):
        raise ConfigError(
            'learning_steps_per_batch is at least 0 or "adaptive", and epsilon_decay above 0 and '
            f"at most 1, got {plan.steps} and {plan.decay}; leave them out for the defaults"
        )


def _fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0])


def _recipe(
    env: Any, arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Recipe, Codec]:
    """Puts arguments and settings together, after a look at the environment."""
    for key in settings:
        if key in ARGUMENTS:
            raise ConfigError(
                f"settings has {key!r}, which is the argument {ARGUMENTS[key]} here; give that"
            )
        if key in FIXED or "." not in key:
            raise ConfigError(
                f"settings has {key!r}; it may have any dotted setting but {', '.join(FIXED)}, "
                "which make a cycle; rookery.train has them all"
            )
    given = {key: arguments[name] for key, name in ARGUMENTS.items()}
    told = {**settings, **given, **FIXED}
    with _in_their_words():
        plain = recipe(env, USUAL | told)
        shown = plain.shown()
        if shown.tables is None:
            return plain, shown.codec
        company = _company(shown.tables, settings) | _snapshots(arguments)
        return recipe(env, USUAL | company | told), shown.codec


def _company(tables: Tables, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns whom a game is played against: where nobody wrote a player for it, more at random."""
    from rookery.envs.games.scripted import SCRIPTED

    written = "selfplay.scripted" in settings or tables.games.name in SCRIPTED
    shares = {"random": 0.25, "scripted": 0.25} if written else {"random": 0.5}
    return {**COMPANY, "selfplay.opponents": shares | {"past": 0.5}}


def _snapshots(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the learner steps between two snapshots: as many as there are in their episodes."""
    steps = arguments["learning_steps_per_batch"]
    episodes = arguments["num_workers"] * arguments["episodes_per_batch"]
    each = steps / episodes if isinstance(steps, int) else 1.0
    return {"selfplay.snapshot_period": max(1, round(SNAPSHOT * each))}


@contextlib.contextmanager
def _in_their_words() -> Iterator[None]:
    """Lets refusals call settings what they are called here."""
    try:
        yield
    except ConfigError as error:
        known = "|".join(map(re.escape, ARGUMENTS))
        said = re.sub(rf"\b({known})\b", lambda found: ARGUMENTS[found[1]], str(error))
        error.args = (said,)
        raise


def _train(
    made_from: Recipe, codec: Codec, plan: Plan, weights: Mapping[str, Any] | None
) -> DqnAgent:
    config, factory = made_from
    _warn(crowding(config, "num_workers"))
    for caution in check(config.env, factory) if config.env.check else ():
        _warn(f"environment check: {caution}")
    with _gallery(config) as folder, _in_their_words():
        parts = wire(
            config,
            factory=factory,
            run_dir=folder,
            weights=None if weights is None else dict(weights),
            approve=lambda spec, learner: _approve(config, spec, learner),
        )
        try:
            returns = _run(parts, plan)
        except BaseException:  # whatever it was, the workers must go; it is raised again
            parts.close()
            raise
        _dismiss(parts)
    return DqnAgent(parts, made_from, codec, returns)


@contextlib.contextmanager
def _gallery(config: Config) -> Iterator[Path | None]:
    """Makes a folder for snapshots, where there will be any; it goes, however this ends."""
    if not config.selfplay.on:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rookery-dqn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _approve(config: Config, spec: EnvSpec, learner: Learner) -> None:
    refuse_memory(estimate(config, spec, learner), config)
    refuse_descriptors(config)
    refuse_devices(config)


def _run(parts: Parts, plan: Plan) -> list[float]:
    """Goes through cycles until one of the limits is reached; returns all episodes' returns."""
    returns: list[float] = []
    for done in cycles(parts, plan, returns):
        for complaint in parts.crew.complaints():
            _warn(complaint)
        answer = plan.callback(done) if plan.callback else None
        if answer is Ask.STOP or plan.over(done, parts.config):
            break
    return returns


def cycles(parts: Parts, plan: Plan, returns: list[float]) -> Iterator[Cycle]:
    """Yields after every cycle, for ever; what episodes returned is appended to `returns`."""
    began, epsilon = time.monotonic(), parts.config.randomness.first
    for number in itertools.count(1):
        publish(parts)
        parts.epsilon = Schedule(epsilon, epsilon, Decay.CONSTANT)
        ended = play(parts).ended
        returns += [episode.score for episode in ended]
        steps = len(ended) if plan.steps is None else plan.steps
        losses = [learned.facts.metrics["loss"].item() for learned in _learn(parts, steps)]
        yield Cycle(
            cycle=number,
            episodes=parts.counters.episodes,
            env_steps=parts.counters.env_steps,
            learner_steps=parts.counters.learner_steps,
            epsilon=epsilon,
            mean_return=float(np.mean(returns[-WINDOW:])),
            loss=float(np.mean(losses)) if losses else float("nan"),
            seconds=time.monotonic() - began,
        )
        epsilon = max(parts.config.actor.epsilon_end, epsilon * plan.fall(len(ended)))


def _learn(parts: Parts, steps: int | Literal["adaptive"]) -> Iterator[Learned]:
    """Takes a cycle's learner steps; yields those that were not skipped."""
    warm = parts.limiter.stored >= parts.config.replay.warmup
    taken = itertools.count()
    while parts.limiter.ready() if steps == "adaptive" else warm and next(taken) < steps:
        learned = learn(parts)
        if learned.facts.metrics:
            yield learned


def _dismiss(parts: Parts) -> None:
    try:
        parts.crew.close()
    except (EnvError, StalledError) as error:  # training is over: what it came to stands
        _warn(f"closing the environments failed: {error}")


def _warn(message: str | None) -> None:
    if message is not None:
        warnings.warn(message, RuntimeWarning, stacklevel=2)

"""DQN training in cycles: all actor processes play episodes, then the learner learns.

    agent = train_dqn(n_episodes=2_000, num_workers=4, callback=print)
    agent.act(obs)

A cycle publishes weights and epsilon, lets each actor process play its episodes, stores them in the
replay buffer, takes learner (gradient) steps, and decays epsilon. Unlike the sync mode of
`rookery.train`, it collects whole episodes, takes a fixed number of learner steps instead of using
a rate limiter (samples per insert), and decays epsilon by cycles. There is no run folder,
checkpoint or evaluation process; `rookery.train` has those.

Opponents in games are random players, scripted players and past versions of the agent.
"""

import contextlib
import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rookery import plugins
from rookery.actors.policy import NONE, Recipe, checked, recipe
from rookery.algorithms import Algorithm
from rookery.api.arguments import argument_names, refuse_arguments
from rookery.api.dqn_agent import DqnAgent, refuse_other_replay
from rookery.config.checks import AT_LEAST_0, Limit, PositiveFraction, PositiveOr0
from rookery.config.schema import Config
from rookery.envs.lookup import name_of
from rookery.envs.make import check
from rookery.envs.spaces import SpaceCodec
from rookery.envs.turn_based.tables import Tables
from rookery.errors import ConfigError, EnvError, StalledError
from rookery.event import Ask, Learned
from rookery.runtime import machine
from rookery.runtime.watchdog import watched_calls
from rookery.schedule import Decay, Schedule
from rookery.training.build import Parts, build_parts
from rookery.training.resources import (
    crowding,
    estimate,
    refuse_descriptors,
    refuse_devices,
    refuse_memory,
)
from rookery.training.steps import collect, learn, publish
from rookery.types import EnvSpec

WINDOW = 100  # episodes in the mean return
PER_EPISODE = 0.999  # default decay of epsilon per episode
ENDLESS = 1 << 62  # env steps or learner steps without a limit
ARGUMENTS = {  # setting → argument of `train_dqn`
    "run.engine": "engine",
    "run.seed": "seed",
    "run.episodes": "n_episodes",
    "algo.gamma": "gamma",
    "algo.n_step": "n_step",
    "algo.target_period": "target_period",
    "net.hidden": "hidden",
    "replay.batch_size": "batch_size",
    "replay.capacity": "buffer_size",
    "replay.learning_starts": "warmup",
    "replay.sampling": "prioritized",
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
USUAL: dict[str, Any] = {"algo.dueling": True, "actor.envs": 1}  # defaults
SNAPSHOT = 10_000  # episodes between two snapshots of a game's player
OPPONENTS: dict[str, Any] = {  # defaults for games
    "selfplay.keep": 10,
    "selfplay.drop": "oldest",
    "selfplay.newest": 5,
    "selfplay.slips": 0.5,
}

# "adaptive": as many as the rate limiter allows; None: one per episode.
Steps: TypeAlias = int | Literal["adaptive"] | None
Number = Annotated[
    float, Limit("must be a number", {"minimum": -math.inf}, "give None for no limit")
]


class Cycle(NamedTuple):
    """Progress of `train_dqn` after a cycle: all actors play episodes, then the learner learns."""

    cycle: int  # from 1
    episodes: int
    env_steps: int
    learner_steps: int
    epsilon: float  # the share of random actions in this cycle
    mean_return: float  # of the last 100 episodes
    loss: float  # mean of this cycle's learner steps; nan before the first
    seconds: float  # since the first cycle began


class CyclePlan(NamedTuple):
    """Arguments of `train_dqn` that control its cycles (play, then learn) and their end."""

    steps: Steps  # learner steps per cycle
    decay: float | None  # factor of epsilon per cycle; None: PER_EPISODE for each episode
    target: float | None
    max_seconds: float | None
    callback: Callable[[Cycle], Any] | None

    def over(self, done: Cycle, config: Config) -> bool:
        """Returns whether training ends after cycle `done`.

        It ends if the number of episodes, the mean return or the time has reached its limit.
        """
        played = done.episodes >= (config.run.episodes or 0)
        solved = self.target is not None and done.mean_return >= self.target
        late = self.max_seconds is not None and done.seconds >= self.max_seconds
        return played or (solved and done.episodes >= WINDOW) or late

    def fall(self, episodes: int) -> float:
        """Returns the factor by which epsilon decays after a cycle of `episodes` episodes."""
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
    epsilon_decay: PositiveFraction | None = None,
    engine: str = "processes",
    target: Number | None = None,
    max_seconds: PositiveOr0 | None = None,
    callback: Callable[[Cycle], Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] = NONE,
) -> DqnAgent:
    """Trains a DQN agent with `num_workers` actor processes, and returns it.

    In each cycle every worker plays `episodes_per_batch` episodes, then the learner takes
    `learning_steps_per_batch` gradient steps (default: one per episode). Training ends after the
    cycle in which `n_episodes` are reached, the mean return of the last 100 episodes reaches
    `target`, `max_seconds` have passed, or `callback` returned `Ask.STOP`. Unless `max_seconds`
    ended it, the result depends only on the arguments, including `seed` and `num_workers`. Ctrl+C
    ends all workers and raises KeyboardInterrupt. docs/train-dqn.md explains every parameter.
    """
    if isinstance(learning_steps_per_batch, int):
        AT_LEAST_0.check("learning_steps_per_batch", learning_steps_per_batch)
    arguments = {**locals()}  # a copy, since a debugger refreshes locals()
    workers = max(1, machine.cores() - 2) if num_workers is None else num_workers
    arguments |= {
        "num_workers": workers,
        "seed": int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed,
        "warmup": batch_size if warmup is None else warmup,
        "prioritized": "prioritized" if prioritized else "uniform",
    }
    plan = CyclePlan(learning_steps_per_batch, epsilon_decay, target, max_seconds, callback)
    return _train(*_recipe(env, arguments, settings), plan, weights)


def _recipe(
    env: Any, arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Recipe, SpaceCodec]:
    """Returns the configuration (`Recipe`) for the arguments of `train_dqn` and `settings`.

    For a game with several players it adds settings of opponents. Also returns the codec that
    converts observations and actions between the environment's form and that of replay.
    """
    refuse_arguments(settings, ARGUMENTS)
    for key in settings:
        if key in FIXED or "." not in key:
            raise ConfigError(
                f"settings has {key!r}; any dotted setting is allowed except {', '.join(FIXED)}, "
                "which train_dqn sets itself; rookery.train takes them all"
            )
    given = {key: arguments[name] for key, name in ARGUMENTS.items()}
    changes = {**settings, **given, **FIXED}
    with argument_names(ARGUMENTS):
        plain = recipe(env, USUAL | changes)
        shown = plain.shown()
        if shown.tables is None:
            return plain, shown.codec
        opponents = _opponents(shown.tables, settings) | _snapshots(arguments)
        return recipe(env, USUAL | opponents | changes), shown.codec


def _opponents(tables: Tables, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the self-play settings: in half of the games the opponents are past weights.

    In the other games the opponents are random and scripted players, or only random players if the
    game has no scripted one.
    """
    known = plugins.names("scripted_players")
    written = "selfplay.scripted" in settings or tables.games.name in known
    shares = {"random": 0.25, "scripted": 0.25} if written else {"random": 0.5}
    return {**OPPONENTS, "selfplay.opponents": shares | {"past": 0.5}}


def _snapshots(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the setting `selfplay.snapshot_period`, in learner steps.

    It is chosen so that a copy of the weights is stored as an opponent about every `SNAPSHOT`
    (10,000) episodes.
    """
    steps = arguments["learning_steps_per_batch"]
    episodes = arguments["num_workers"] * arguments["episodes_per_batch"]
    each = steps / episodes if isinstance(steps, int) else 1.0
    return {"selfplay.snapshot_period": max(1, round(SNAPSHOT * each))}


def _train(
    made_from: Recipe, codec: SpaceCodec, plan: CyclePlan, weights: Mapping[str, Any] | None
) -> DqnAgent:
    config, factory = made_from
    with argument_names(ARGUMENTS):
        refuse_other_replay(config)
    _warn(crowding(config, "num_workers"))
    if config.env.check:
        name = config.env.id if factory is None else name_of(factory)
        with watched_calls(name, config.actor.env_step_timeout_s) as calls:
            cautions = check(config.env, factory, calls)
        for caution in cautions:
            _warn(f"environment check: {caution}")
    with _snapshot_folder(config) as folder, argument_names(ARGUMENTS):
        parts = build_parts(
            config,
            factory=factory,
            run_dir=folder,
            weights=None if weights is None else dict(weights),
            approve=lambda spec, algorithm: _approve(config, spec, algorithm),
        )
        try:
            returns = _run(parts, plan)
        except BaseException:  # close the workers, then raise it again
            parts.close()
            raise
        _close_workers(parts)
    return DqnAgent(parts, made_from, codec, returns)


@contextlib.contextmanager
def _snapshot_folder(config: Config) -> Iterator[Path | None]:
    """Context with a temporary folder for opponents' weights; yields None without self-play."""
    if not config.selfplay.on:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rookery-dqn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _approve(config: Config, spec: EnvSpec, algorithm: Algorithm) -> None:
    refuse_memory(estimate(config, spec, algorithm), config)
    refuse_descriptors(config)
    refuse_devices(config)


def _run(parts: Parts, plan: CyclePlan) -> list[float]:
    """Runs training cycles until a limit or the callback ends them.

    Returns the returns of all episodes, in the order of training.
    """
    returns: list[float] = []
    for done in cycles(parts, plan, returns):
        for complaint in parts.actors.warnings():
            _warn(complaint)
        answer = plan.callback(done) if plan.callback else None
        if answer is Ask.STOP or plan.over(done, parts.config):
            break
    return returns


def cycles(parts: Parts, plan: CyclePlan, returns: list[float]) -> Iterator[Cycle]:
    """Runs training cycles (play, then learn) without end; yields the progress after each cycle.

    Appends the return of every finished episode to the list `returns`.
    """
    began, epsilon = time.monotonic(), parts.config.randomness.first
    for number in itertools.count(1):
        publish(parts)
        parts.epsilon = Schedule(epsilon, epsilon, Decay.CONSTANT)
        ended = collect(parts).ended
        returns += [episode.score for episode in ended]
        steps = len(ended) if plan.steps is None else plan.steps
        losses = [float(learned.result.metrics["loss"]) for learned in _learn(parts, steps)]
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
    """Takes the learner steps of one cycle, and yields their results.

    Takes none before `replay.learning_starts` env steps are stored. Learner steps with a loss or
    gradient that is not finite are skipped and not yielded.
    """
    warm = parts.limiter.stored >= parts.config.replay.learning_starts
    taken = itertools.count()
    while parts.limiter.ready() if steps == "adaptive" else warm and next(taken) < steps:
        learned = learn(parts)
        if learned.result.metrics:
            yield learned


def _close_workers(parts: Parts) -> None:
    try:
        parts.actors.close()
    except (EnvError, StalledError) as error:  # training has ended, so the agent is kept
        _warn(f"closing the environments failed: {error}")


def _warn(message: str | None) -> None:
    if message is not None:
        warnings.warn(message, RuntimeWarning, stacklevel=2)

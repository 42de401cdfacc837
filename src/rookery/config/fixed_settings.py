"""Settings that a resumed run may not change, because its checkpoint depends on them.

    changes = fixed_changes(load_run(run_dir), config, saved={SavedPart.RUN, SavedPart.NETWORKS})

One table lists them, with the part of the checkpoint that depends on each. A checkpoint without
that part leaves the setting free: for example, one without replay fits any `replay.capacity`.
All other settings may change.
"""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from rookery.config.algorithms import defaulted
from rookery.config.load import Difference, differences
from rookery.config.schema import Config, Draw, Optimizer


class SavedPart(StrEnum):
    """Part of a checkpoint, which only fits the settings that it was saved with."""

    RUN = "run"
    NETWORKS = "networks"  # weights, and moments of the optimizer
    REPLAY = "replay"
    EPISODES = "episodes"  # open episodes of the actors, which async runs do not save


class FixedSettings(NamedTuple):
    """Settings that must stay as they were if a checkpoint has the part `part`."""

    keys: tuple[str, ...]  # dotted; "net." is every setting of that section
    part: SavedPart
    why: str
    fits: Callable[[Config, Config], bool] = lambda before, after: False  # with changed settings


class FixedChange(NamedTuple):
    """A change of a setting that the checkpoint does not allow, and the reason."""

    change: Difference
    part: SavedPart
    why: str


def _same_window(before: Config, after: Config) -> bool:
    """Returns whether a row becomes complete, and can be sampled, after the same rows as before."""
    windows = [
        (max(algo.n_step, algo.sequence), algo.stride, algo.burn_in)
        for algo in (before.algo, after.algo)
    ]
    return windows[0] == windows[1]


def _same_capacity(before: Config, after: Config) -> bool:
    return before.capacity == after.capacity


def _has_priorities(before: Config, after: Config) -> bool:
    return before.replay.sampling is Draw.PRIORITIZED or after.replay.sampling is Draw.UNIFORM


def _same_layers(before: Config, after: Config) -> bool:
    """Returns whether both have a time limit of ours: another limit is no other wrapper."""
    return None not in (before.env.max_episode_steps, after.env.max_episode_steps)


def _moments(config: Config) -> set[str]:
    """Returns which arrays the optimizer of a run keeps for each parameter."""
    given = config.learner.optimizer_kwargs
    momentum = {"momentum_buffer"} if given.get("momentum") else set()
    if config.learner.optimizer is Optimizer.SGD:
        return momentum
    if config.learner.optimizer is Optimizer.RMSPROP:
        return {"square_avg"} | momentum | ({"grad_avg"} if given.get("centered") else set())
    return {"exp_avg", "exp_avg_sq"} | ({"max_exp_avg_sq"} if given.get("amsgrad") else set())


def _has_moments(before: Config, after: Config) -> bool:
    """Returns whether the new optimizer finds its moments saved, or none, and begins with new ones.

    SGD is satisfied in any case: it begins a missing momentum anew.
    """
    saved = _moments(before)
    return not saved or after.learner.optimizer is Optimizer.SGD or _moments(after) <= saved


def _has_opponents(before: Config, after: Config) -> bool:
    return before.selfplay.on or not after.selfplay.on


def _lacks_opponents(before: Config, after: Config) -> bool:
    return not (before.selfplay.on and after.selfplay.on)


OTHER_RUN = "they say which run this is"
OTHER_NETWORKS = "the saved weights are those of other networks"
OTHER_ENV = "the saved weights, rows and episodes are those of another environment"
OTHER_ROWS = "the saved replay does not fit"
NO_PRIORITIES = "the checkpoint has no priorities"
NO_MOMENTS = "the checkpoint lacks the moments that this optimizer continues from"
NO_OPPONENTS = "the checkpoint has no opponents"
OTHER_OPPONENTS = "the saved opponents are another number"
OTHER_EPISODES = "the checkpoint has open episodes of another number of environments"
OTHER_WRAPPERS = "the checkpoint has open episodes with other wrappers"

RUN, NETWORKS, REPLAY, EPISODES = SavedPart

FIXED: tuple[FixedSettings, ...] = (
    FixedSettings(("name", "run.seed", "run.run_dir", "report.tag"), RUN, OTHER_RUN),
    FixedSettings(("env.id", "env.kwargs", "env.wrappers"), NETWORKS, OTHER_ENV),
    FixedSettings(("algo.name", "net."), NETWORKS, OTHER_NETWORKS),
    FixedSettings(("sb3.algorithm", "sb3.policy"), NETWORKS, OTHER_NETWORKS),
    FixedSettings(("sb3.envs",), REPLAY, OTHER_ROWS),
    FixedSettings(("env.frame_stack", "env.normalize_obs"), NETWORKS, OTHER_NETWORKS),
    FixedSettings(
        ("learner.optimizer", "learner.optimizer_kwargs"), NETWORKS, NO_MOMENTS, _has_moments
    ),
    FixedSettings(("selfplay.opponents",), NETWORKS, NO_OPPONENTS, _has_opponents),
    FixedSettings(("selfplay.keep",), NETWORKS, OTHER_OPPONENTS, _lacks_opponents),
    FixedSettings(("replay.sampling",), REPLAY, NO_PRIORITIES, _has_priorities),
    FixedSettings(
        ("replay.capacity", "actor.num", "actor.envs", "actor.chunk", "env.frame_stack"),
        REPLAY,
        OTHER_ROWS,
        _same_capacity,
    ),
    FixedSettings(("actor.envs",), REPLAY, OTHER_ROWS),
    FixedSettings(
        ("algo.n_step", "algo.length", "algo.burn_in", "algo.overlap"),
        REPLAY,
        OTHER_ROWS,
        _same_window,
    ),
    FixedSettings(("actor.num", "actor.envs"), EPISODES, OTHER_EPISODES),
    FixedSettings(("env.max_episode_steps",), EPISODES, OTHER_WRAPPERS, _same_layers),
)


def fixed_changes(before: Config, after: Config, saved: Collection[SavedPart]) -> list[FixedChange]:
    """Returns the changes from `before` to `after` that a checkpoint with these parts forbids.

    `before` are the settings of the run that is resumed. Each setting is named once.
    """
    changed = {change.key: change for change in differences(before, after)}
    if "algo.name" in changed:  # the settings of another algorithm follow from its name
        follow = defaulted() | {key for key in changed if key.startswith("algo.")}
        changed = {k: v for k, v in changed.items() if k == "algo.name" or k not in follow}
    found: dict[str, FixedChange] = {}
    own = tuple(f"algo.{name}" for name in before.algo.network_settings)
    for rule in (*FIXED, FixedSettings(own, NETWORKS, OTHER_NETWORKS)):
        if rule.part not in saved or rule.fits(before, after):
            continue
        for key in changed:
            if key in rule.keys or f"{key.partition('.')[0]}." in rule.keys:
                found.setdefault(key, FixedChange(changed[key], rule.part, rule.why))
    return list(found.values())

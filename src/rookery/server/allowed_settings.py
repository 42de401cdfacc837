"""What a server may set on its clients: the keys that are listed here, and no others.

A client builds its run from settings that a server has sent, so they are checked as a stranger's:

| settings | allowed |
|---|---|
| any key that is not in `TOLD` | never: devices, processes, storage and timeouts are the client's |
| numbers, true, false, null | yes; sizes up to `SIZES` |
| `env.id`, `env.imports`, `env.wrappers` | as one packaged scenario has them, or an id alone |
| `net.custom` | as a packaged scenario has it |
| `kwargs` and other nested settings | numbers; texts only if a packaged scenario has them |
| other texts | words of an enum, which parsing checks |

A client that wants anything else gives the scenario itself (`--scenario FILE`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from rookery.config.algorithms import known, settings_of
from rookery.config.load import as_plain, load, scenarios
from rookery.errors import RefusedError

TOLD: Mapping[str, frozenset[str]] = {
    "env": frozenset(
        {
            "id",
            "kwargs",
            "wrappers",
            "imports",
            "max_episode_steps",
            "reward_scale",
            "reward_clip",
            "frame_stack",
        }
    ),
    "net": frozenset(
        {"hidden", "activation", "image", "recurrent", "memory", "custom", "kwargs"},
    ),
    "replay": frozenset(
        {
            "capacity",
            "learning_starts",
            "batch_size",
            "samples_per_insert",
            "sampling",
            "alpha",
            "initial_priority",
            "beta",
            "beta_end",
            "max_policy_lag",
            "hindsight",
        }
    ),
    "actor": frozenset(
        {
            "envs",
            "chunk",
            "epsilon",
            "epsilon_end",
            "epsilon_steps",
            "epsilon_decay",
            "exploration",
            "pull_period",
        }
    ),
    "learner": frozenset(
        {
            "lr",
            "lr_end",
            "lr_decay",
            "optimizer",
            "optimizer_kwargs",
            "max_grad_norm",
            "publish_period",
            "max_bad_steps",
        }
    ),
}  # beside the settings of the algorithm: section → keys
SIZES: Mapping[str, int] = {
    "env.frame_stack": 64,
    "net.hidden": 16_384,
    "net.memory": 16_384,
    "replay.capacity": 2_000_000,
    "replay.learning_starts": 2_000_000,
    "replay.batch_size": 65_536,
    "actor.envs": 1_024,
    "actor.chunk": 1_000_000,
    **{
        f"algo.{name}": 4_096
        for name in (
            *("atoms", "quantiles", "length", "burn_in", "critics", "heads", "width", "teams"),
            *("explorers", "rounds", "neighbours", "epochs", "guided_steps", "policy_steps"),
        )
    },
}  # largest numbers that a server may ask a client for
LAYERS = 64  # entries of a list
NESTED = frozenset({"env.kwargs", "net.kwargs", "learner.optimizer_kwargs", "algo.curriculum"})
ID = re.compile(r"([A-Za-z0-9_-]+/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Packaged(NamedTuple):
    """What the scenarios of this installation name."""

    envs: tuple[tuple[Any, Any, Any], ...]  # id, imports, wrappers
    customs: frozenset[str]
    texts: frozenset[str]  # in kwargs


def told_keys(section: str, algorithm: str) -> frozenset[str]:
    """Returns the keys of a section that a server sends and may set."""
    if section != "algo":
        return TOLD[section]
    return frozenset(field.name for field in fields(settings_of(algorithm)))


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Raises a RefusedError for settings of a server that a client does not take from it."""
    name = settings["name"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refused("name", name, "is no plain name", "settings")
    algorithm = settings["algo"].get("name")
    if not isinstance(algorithm, str) or algorithm not in known():
        raise _refused("algo.name", algorithm, "names code to be run here", "code")
    for section in (*TOLD, "algo"):
        allowed = told_keys(section, algorithm)
        for key, value in settings[section].items():
            if key not in allowed:
                raise _refused(f"{section}.{key}", value, "is the client's own", "settings")
            _refuse_value(f"{section}.{key}", value)
    _refuse_algorithm(settings["algo"], algorithm)
    _refuse_env(settings["env"])
    custom = settings["net"].get("custom")
    if custom is not None and custom not in _packaged().customs:
        raise _refused("net.custom", custom, "names code to be run here", "code")


def _refuse_value(key: str, value: Any) -> None:
    """Refuses large sizes, long lists, and texts in nested settings."""
    if key in ("env.wrappers", "env.imports"):  # compared as a whole
        return
    if isinstance(value, Mapping) and key not in NESTED:
        raise _refused(key, value, "is no single value", "settings")
    for text in _texts(value) if key in NESTED else ():
        if text not in _packaged().texts:
            raise _refused(key, text, "is a text, which may name code or a file", "code")
    for number in _numbers(value):
        if number > SIZES.get(key, number):
            raise _refused(key, number, f"is above {SIZES[key]}, the client's limit", "settings")
    if isinstance(value, list | tuple) and len(value) > LAYERS:
        raise _refused(key, f"{len(value)} entries", f"is longer than {LAYERS}", "settings")


def _refuse_algorithm(algo: Mapping[str, Any], algorithm: str) -> None:
    """Refuses texts that are no words of an enum: what they mean is the algorithm's secret."""
    words = {f.name for f in fields(settings_of(algorithm)) if isinstance(f.default, Enum)}
    for key, value in algo.items():
        if isinstance(value, str) and key not in words | {"name"}:
            raise _refused(f"algo.{key}", value, "is a text, which may name code or a file", "code")


def _refuse_env(env: Mapping[str, Any]) -> None:
    """An environment of a plain id runs what is installed here; the rest is code by its name."""
    wanted = (env.get("id"), list(env.get("imports", ())), list(env.get("wrappers", ())))
    if wanted in _packaged().envs:
        return
    name, imports, wrappers = wanted
    if imports or wrappers or not isinstance(name, str) or not ID.fullmatch(name):
        raise _refused("env", wanted, "names code to be run here", "code")


@cache
def _packaged() -> Packaged:
    configs = [load(name) for name in scenarios()]
    envs = [as_plain(config.env) for config in configs]
    kwargs = [*(env["kwargs"] for env in envs), *(as_plain(c.net)["kwargs"] for c in configs)]
    kwargs += [as_plain(config.algo).get("curriculum", {}) for config in configs]
    return Packaged(
        tuple((env["id"], list(env["imports"]), list(env["wrappers"])) for env in envs),
        frozenset(config.net.custom for config in configs if config.net.custom),
        frozenset(text for each in kwargs for text in _texts(each)),
    )


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in nested settings; of keys, those that are no plain keyword."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if not str(key).isidentifier():
                yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers(entry)


def _refused(key: str, value: Any, why: str, code: str) -> RefusedError:
    return RefusedError(
        f"the server sets {key} to {value!r:.300}, which {why}; a server may set plain numbers and "
        "what packaged scenarios have; look at it, then give the scenario yourself with --scenario "
        "FILE",
        code,
    )

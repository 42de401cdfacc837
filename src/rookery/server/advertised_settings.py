"""What a server tells clients that join: what is trained, how, and until when.

It travels with the server's statistics. A client builds its run from it. The settings come from
another host, so they are checked as a stranger's: a client takes the keys that are listed here, and
no others.

| settings | allowed |
|---|---|
| any key that is not in `ALLOWED` | never: devices, processes, storage, timeouts are the client's |
| numbers, true, false, null | yes, up to the key's limit |
| `env.id`, `env.imports`, `env.wrappers` | as one packaged scenario has them, or an id alone |
| `net.custom` | as a packaged scenario has it |
| `kwargs` and other nested settings | numbers; texts only if a packaged scenario has them |
| other texts | words of an enum, which parsing checks |

A client that wants anything else gives the scenario itself (`--scenario FILE`).
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum
from functools import cache
from typing import Any

from rookery.config.algorithms import known
from rookery.config.algorithms import settings_of as algorithm_settings
from rookery.config.load import load, scenarios
from rookery.config.parse import parse
from rookery.config.schema import BackendName, Config, Engine, Inference, Mode
from rookery.config.section import as_plain
from rookery.errors import ConfigError, RefusedError

KEY = "notice"  # in the statistics
ENDLESS = 1 << 62
OVER = frozenset({"over", "budget"})  # refusals that say that all is done
ALLOWED = {  # keys by their section
    "env": "id kwargs wrappers imports max_episode_steps reward_scale reward_clip frame_stack",
    "net": "hidden critic_hidden memory activation init image recurrent custom kwargs",
    "replay": "capacity learning_starts batch_size samples_per_insert sampling alpha beta beta_end "
    "initial_priority max_policy_lag hindsight",
    "actor": "envs chunk epsilon epsilon_end epsilon_steps epsilon_decay exploration pull_period",
    "learner": "lr critic_lr lr_end lr_decay optimizer optimizer_kwargs max_grad_norm "
    "publish_period max_bad_steps",
    "algo": "",  # any setting of the algorithm
}
SIZES = (  # of algorithms
    "atoms quantiles length burn_in critics heads width teams explorers rounds neighbours epochs "
    "guided_steps policy_steps"
)
LIMITS = {  # the largest number of a key
    "env.frame_stack": 64,
    "net.hidden": 16_384,
    "net.critic_hidden": 16_384,
    "net.memory": 16_384,
    "replay.capacity": 2_000_000,
    "replay.learning_starts": 2_000_000,
    "replay.batch_size": 65_536,
    "actor.envs": 1_024,
    "actor.chunk": 1_000_000,
    **dict.fromkeys((f"algo.{size}" for size in SIZES.split()), 4_096),
}
LAYERS = 64  # entries of a list
AS_PACKAGED = ("env.kwargs", "net.kwargs", "net.custom", "algo.curriculum")  # texts in them
NESTED = ("env.kwargs", "net.kwargs", "learner.optimizer_kwargs", "algo.curriculum")
ENV = ("id", "imports", "wrappers")
ID = re.compile(r"([A-Za-z0-9_-]+/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Sharing(StrEnum):
    """What clients send."""

    GRADIENTS = "gradients"  # of one batch each; the server takes the steps
    FEDERATED = "federated"  # what a round of training has changed


@dataclass(frozen=True)
class Notice:
    """What is trained, and until when."""

    sharing: Sharing
    settings: dict[str, Any]  # of the scenario: its name, and the sections of ALLOWED
    round_steps: int  # env steps of a client in a federated round
    deadline_s: float  # of a round
    until: int | None  # the version at which all is done; None: there is no such
    mu: float = 0.0  # FedProx: how strongly a client is held near what it was served

    def told(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        return dict(vars(self))

    @classmethod
    def heard(cls, stats: Mapping[str, Any]) -> "Notice":
        """Reads what a server has told."""
        try:
            told = stats[KEY]
            until, mu = told["until"], float(told["mu"])
            if not 0 <= mu < math.inf:
                raise ValueError(f"mu is {mu}")
            return cls(
                Sharing(told["sharing"]),
                {key: told["settings"][key] for key in ("name", *ALLOWED)},
                int(told["round_steps"]),
                float(told["deadline_s"]),
                None if until is None else int(until),
                mu,
            )
        except (LookupError, TypeError, ValueError) as error:
            raise _unreadable("does not say what is trained", error) from error


def _unreadable(what: str, error: Exception) -> RefusedError:
    return RefusedError(
        f"this server {what} ({type(error).__name__}: {error}); join one that `rookery serve` of "
        "this release has started",
        "notice",
    )


def portable(config: Config) -> Config:
    """Returns the settings of one run in one process, wherever that is."""
    refuse(config)
    own: dict[str, dict[str, Any]] = {
        "run": {"mode": Mode.SINGLE, "engine": Engine.AUTO, "env_steps": ENDLESS}
        | {"episodes": None, "minutes": None, "callbacks": ()},
        "env": {"check": False},
        "actor": {"num": 1, "devices": (), "inference": Inference.LOCAL, "chunk_episodes": None},
        "replay": {"shards": None},
        "learner": {"device": "cpu", "replicas": 1, "rendezvous": None},
    }
    sections = {name: replace(getattr(config, name), **own[name]) for name in own}
    return replace(config, **sections)


def refuse(config: Config) -> None:
    """Refuses what cannot be learned with others over a server."""
    if config.env.normalize_obs or config.env.normalize_reward:
        raise ConfigError(
            "env.normalize_obs and env.normalize_reward have statistics that no update carries to "
            "the others; use a wrapper in env.wrappers, such as NormalizeObservation, or leave "
            "them out"
        )
    other = config.backend is not BackendName.ROOKERY
    if other or config.selfplay.on or config.run.mode is Mode.DEVICE:
        raise ConfigError(
            f"{config.name} trains with another library, against its own past or on a device, and "
            "clients of a server do not; choose another --scenario"
        )


def settings_of(config: Config) -> dict[str, Any]:
    """Returns what of a config is told to others: the keys that a client takes from a server."""
    sections = {section: as_plain(getattr(config, section)) for section in ALLOWED}
    told = {
        section: {key: plain[key] for key in plain if key in allowed(section, config.algo.name)}
        for section, plain in sections.items()
    }
    return {"name": config.name, **told}


def config_of(notice: Notice) -> Config:
    """Returns the settings that a server has told, if it may set all of them."""
    try:
        refuse_settings(notice.settings)
    except (AttributeError, LookupError, TypeError) as error:
        raise _unreadable("tells settings that are none", error) from error
    return parse(Config, notice.settings)


def allowed(section: str, algorithm: str) -> Collection[str]:
    """Returns the keys of a section that a server sends and may set."""
    if section == "algo":
        return [field.name for field in fields(algorithm_settings(algorithm))]
    return ALLOWED[section].split()


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Raises a RefusedError for settings of a server that a client does not take from it."""
    name, algorithm = settings["name"], settings["algo"].get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refused("name", name, "is no plain name", "settings")
    if not isinstance(algorithm, str) or algorithm not in known():
        raise _refused("algo.name", algorithm, "names code to be run here", "code")
    for section in ALLOWED:
        for key, value in settings[section].items():
            if key not in allowed(section, algorithm):
                raise _refused(f"{section}.{key}", value, "is the client's own", "settings")
            if key not in ("imports", "wrappers"):
                _refuse_value(f"{section}.{key}", value)
    _refuse_algorithm(settings["algo"], algorithm)
    _refuse_env(settings["env"])


def _refuse_value(key: str, value: Any) -> None:
    """Refuses large sizes, long lists, and texts where they may name code or a file."""
    limit = LIMITS.get(key, math.inf)
    if isinstance(value, Mapping) and key not in NESTED:
        raise _refused(key, value, "is no single value", "settings")
    if isinstance(value, list | tuple) and len(value) > LAYERS:
        raise _refused(key, f"{len(value)} entries", f"is longer than {LAYERS}", "settings")
    as_packaged = key in (*NESTED, *AS_PACKAGED)
    for leaf in _leaves(value):
        if isinstance(leaf, str) and as_packaged and leaf not in _packaged_texts().get(key, ()):
            raise _refused(key, leaf, "is a text, which may name code or a file", "code")
        if isinstance(leaf, int | float) and leaf > limit:
            raise _refused(key, leaf, f"is above {limit}, the client's limit", "settings")


def _refuse_algorithm(algo: Mapping[str, Any], algorithm: str) -> None:
    """Refuses texts that are no words of an enum: only the algorithm knows what they mean."""
    words = {f.name for f in fields(algorithm_settings(algorithm)) if isinstance(f.default, Enum)}
    for key, value in algo.items():
        if isinstance(value, str) and key not in words | {"name"}:
            raise _refused(f"algo.{key}", value, "is a text, which may name code or a file", "code")


def _refuse_env(env: Mapping[str, Any]) -> None:
    """An environment of a plain id runs what is installed here; the rest is code by its name."""
    wanted = {"imports": [], "wrappers": []} | {key: env[key] for key in ENV if key in env}
    packaged = ({key: as_plain(c.env)[key] for key in ENV} for c in _packaged())
    if wanted in packaged:
        return
    name, is_code = wanted.get("id"), wanted["imports"] or wanted["wrappers"]
    if is_code or not isinstance(name, str) or not ID.fullmatch(name):
        raise _refused("env", wanted, "names code to be run here", "code")


@cache
def _packaged() -> tuple[Config, ...]:
    return tuple(load(name) for name in scenarios())


@cache
def _packaged_texts() -> Mapping[str, frozenset[str]]:
    """Returns the texts that the scenarios of this installation have in each of `AS_PACKAGED`."""
    found: dict[str, set[str]] = {key: set() for key in AS_PACKAGED}
    for config in _packaged():
        for dotted in AS_PACKAGED:
            section, key = dotted.split(".")
            leaves = _leaves(as_plain(getattr(config, section)).get(key))
            found[dotted] |= {leaf for leaf in leaves if isinstance(leaf, str)}
    return {key: frozenset(texts) for key, texts in found.items()}


def _leaves(value: Any) -> Iterator[Any]:
    """Yields what is in nested settings; of keys, those that are no plain keyword."""
    if isinstance(value, Mapping):
        yield from (str(key) for key in value if not str(key).isidentifier())
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for entry in value:
        yield from _leaves(entry)


def _refused(key: str, value: Any, why: str, code: str) -> RefusedError:
    return RefusedError(
        f"the server sets {key} to {value!r:.300}, which {why}; a server may set plain numbers and "
        "what packaged scenarios have; look at it, then give the scenario yourself with --scenario "
        "FILE",
        code,
    )

"""The settings that a server sends its clients: what is trained, how, and until when.

They are part of the server's statistics, and a client builds its run from them. They come from
another host, so a client takes the keys that are listed here, and no others.

| settings | a client takes them |
|---|---|
| as the scenario of that name has them on the client's host | always |
| any other key that is not in `ALLOWED` | never: devices, processes, storage are the client's own |
| numbers, true, false, null, words of an enum | up to the limit of their key |
| `env.id` | if it is the id of an environment without a module to import |
| other texts, such as wrappers, imports and networks | never: they may name code or a file |

A client that wants anything else gives the scenario itself (`--scenario FILE`).
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum
from typing import Any

from rookery.config.algorithms import known
from rookery.config.algorithms import settings_of as algorithm_settings
from rookery.config.checks import PositiveOr0
from rookery.config.load import load, scenarios
from rookery.config.parse import annotation, parse
from rookery.config.schema import BackendName, Config, Engine, Inference, Mode
from rookery.config.section import Section, as_plain
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
LARGEST = {  # keys by the largest number that they may have
    64: "env.frame_stack",
    1_024: "actor.envs",
    4_096: "algo.atoms algo.quantiles algo.length algo.burn_in algo.critics algo.heads algo.width "
    "algo.teams algo.explorers algo.rounds algo.neighbours algo.epochs algo.guided_steps "
    "algo.policy_steps",
    16_384: "net.hidden net.critic_hidden net.memory",
    65_536: "replay.batch_size",
    1_000_000: "actor.chunk",
    2_000_000: "replay.capacity replay.learning_starts",
}
LIMITS = {key: most for most, keys in LARGEST.items() for key in keys.split()}
LAYERS = 64  # entries of a list
CODE = ("env.imports", "env.wrappers", "net.custom")
ID = re.compile(r"([A-Za-z0-9_-]+/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Sharing(StrEnum):
    """The kind of update that clients of a parameter server send."""

    GRADIENTS = "gradients"  # of one batch each; the server takes the steps
    FEDERATED = "federated"  # what a round of training has changed


@dataclass(frozen=True)
class Notice(Section):
    """The settings that a parameter server sends to its clients."""

    sharing: Sharing
    settings: dict[str, Any]  # of the scenario: its name, and the sections of ALLOWED
    round_steps: int  # env steps of a client in a federated round
    deadline_s: float  # of a round
    until: int | None  # the version at which all is done; None: there is no such
    mu: PositiveOr0 = 0.0  # FedProx: how strongly a client is held near what it was served

    def told(self) -> dict[str, Any]:
        """Returns the settings as JSON values, for the server's statistics."""
        return dict(as_plain(self))

    @classmethod
    def heard(cls, stats: Mapping[str, Any]) -> "Notice":
        """Reads the settings from a server's statistics; raises RefusedError for other ones."""
        try:
            return parse(cls, stats[KEY])
        except (LookupError, TypeError, ConfigError) as error:
            raise _unreadable("does not say what is trained", error) from error


def _unreadable(what: str, error: Exception) -> RefusedError:
    return RefusedError(
        f"this server {what} ({type(error).__name__}: {error}); join one that `rookery serve` of "
        "this release has started",
        "notice",
    )


def portable(config: Config) -> Config:
    """Returns settings without those of a host: one run in single mode, on the CPU, without end."""
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
    """Raises ConfigError for settings with which several clients cannot train one network."""
    if config.env.normalize_obs or config.env.normalize_reward:
        raise ConfigError(
            "env.normalize_obs and env.normalize_reward have statistics that no update carries; "
            "use a wrapper in env.wrappers, such as NormalizeObservation, or leave them out"
        )
    other = config.backend is not BackendName.ROOKERY
    if other or config.selfplay.on or config.run.mode is Mode.DEVICE:
        raise ConfigError(
            f"{config.name} trains with another library, against its own past or on a device, and "
            "clients of a server do not; choose another --scenario"
        )


def settings_of(config: Config) -> dict[str, Any]:
    """Returns the part of the settings that a server sends: the keys that clients accept."""
    sections = {section: as_plain(getattr(config, section)) for section in ALLOWED}
    told = {
        section: {key: plain[key] for key in plain if key in allowed(section, config.algo.name)}
        for section, plain in sections.items()
    }
    return {"name": config.name, **told}


def config_of(notice: Notice) -> Config:
    """Returns the settings that a server has sent; raises RefusedError if it may not set one."""
    try:
        refuse_settings(notice.settings)
    except (AttributeError, LookupError, TypeError) as error:
        raise _unreadable("tells settings that are none", error) from error
    try:
        return parse(Config, notice.settings)
    except ConfigError as error:
        name = notice.settings["name"]
        raise _refused("name", name, f"has a wrong setting ({error})", "settings") from error


def allowed(section: str, algorithm: str) -> Collection[str]:
    """Returns the keys of a section that a server sends and may set."""
    if section == "algo":
        return [field.name for field in fields(algorithm_settings(algorithm))]
    return ALLOWED[section].split()


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Raises RefusedError for settings that a client does not accept from a server."""
    name, algorithm = settings["name"], settings["algo"].get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refused("name", name, "is no plain name", "settings")
    if algorithm not in known():
        raise _refused("algo.name", algorithm, "names code to be run here", "code")
    own = settings_of(load(name)) if name in scenarios() else {}
    for section in settings.keys() - {"name"}:
        for key, value in settings[section].items():
            if key not in allowed(section, algorithm):
                raise _refused(f"{section}.{key}", value, "is the client's own", "settings")
            if value != own.get(section, {}).get(key):
                _refuse_value(f"{section}.{key}", value)


def _refuse_value(key: str, value: Any) -> None:
    """Raises RefusedError for large sizes, long lists, and texts that may name code."""
    limit = LIMITS.get(key, math.inf)
    if key in CODE and value:
        raise _refused(key, value, "names code to be run here", "code")
    if isinstance(value, list | tuple) and len(value) > LAYERS:
        raise _refused(key, f"{len(value)} entries", f"is longer than {LAYERS}", "settings")
    for leaf in _leaves(value):
        if isinstance(leaf, str) and not _is_word(key, leaf):
            raise _refused(key, leaf, "is a text, which may name code or a file", "code")
        if isinstance(leaf, int | float) and leaf > limit:
            raise _refused(key, leaf, f"is above {limit}, the client's limit", "settings")


def _is_word(key: str, text: str) -> bool:
    """Returns whether a text is an environment's id, an algorithm's name or in an enum."""
    if key == "env.id":
        return ID.fullmatch(text) is not None
    wanted = annotation(key)
    return key == "algo.name" or (isinstance(wanted, type) and issubclass(wanted, Enum))


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
        "what its scenario has on this host too; look at it, then give the scenario yourself with "
        "--scenario FILE",
        code,
    )

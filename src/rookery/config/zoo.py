"""Files of the RL Baselines3 Zoo become scenarios; nothing in them is run.

    imported = read(Path("hyperparams/sac.yml"), "Pendulum-v1")
    Path("pendulum.yaml").write_text(imported.text())

Such a file maps ids of environments to settings in the words of Stable-Baselines3. They become
settings of our own algorithms (`translate.py`), or, with backend sb3, arguments of SB3's.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from rookery.config import literal, text
from rookery.config.draft import Draft
from rookery.config.parse import nearest, parse
from rookery.config.schema import SB3_ALGORITHMS, SB3_OFF_POLICY, Backend, Config
from rookery.config.translate import (
    ALGORITHMS,
    ENVIRONMENT,
    Table,
    architecture,
    lost,
    noise_type,
    scheduled,
    translate,
)
from rookery.errors import ConfigError

SPELLED = (  # values that may be Python in quotes
    "policy_kwargs",
    "normalize",
    "normalize_kwargs",
    "replay_buffer_kwargs",
    "rollout_buffer_kwargs",
    "env_kwargs",
    "train_freq",
)
GROUPS = ("atari", "default")  # entries for environments that have none of their own
GAMES = re.compile(r"ALE/|.*NoFrameskip-v\d+$")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")  # YAML 1.1 takes 1e-4 for text


class Imported(NamedTuple):
    """A scenario, and a line for each thing of the file that is not in it or means another."""

    settings: dict[str, Any]  # by section
    notes: list[str]
    origin: str  # file and entry

    def text(self) -> str:
        """Returns the scenario's file, the notes as comments."""
        head = [f"# Imported from {self.origin} of the RL Baselines3 Zoo."]
        if self.notes:
            head += ["# Not taken over as it is:", *(f"#   {note}" for note in self.notes)]
        return "\n".join([*head, "", text.write(self.settings)])


def read(
    path: Path, env_id: str, *, algorithm: str | None = None, backend: Backend = Backend.ROOKERY
) -> Imported:
    """Reads the settings for an environment; the file's name says of which algorithm, or you do."""
    name = _algorithm(path, algorithm, backend)
    entry, found = _entry(text.read_file(path, text.read_shared), env_id, path)
    stated = {str(key): _value(key, value, entry) for key, value in found.items()}
    draft = MAKERS[backend](name, env_id, stated)
    if entry != env_id:
        draft.notes.insert(0, f"{entry}: the file has no {env_id}, these are its settings")
    settings = _headed(draft, name)
    parse(Config, settings)  # refuses what cannot work
    return Imported(settings, list(map(_line, draft.notes)), _line(f"{path.name}, {entry}"))


def _line(told: str) -> str:
    """Returns text as one line: it becomes a comment, and must not go on behind it."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in told).split())


def _algorithm(path: Path, given: str | None, backend: Backend) -> str:
    name = (given or path.stem).lower()
    known = list(ALGORITHMS) if backend is Backend.ROOKERY else [n.lower() for n in SB3_ALGORITHMS]
    if name in known:
        return name
    where = "--algo" if given else f"the name of {path.name}"
    raise ConfigError(
        f"{where} says {name!r}; with backend {backend} it may be {', '.join(known)}; "
        "name one with --algo, or change --backend"
    )


def _entry(data: dict[str, Any], env_id: str, path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the entry for an environment: its own, another version's, or that of a group."""
    base = env_id.rpartition("-v")[0]
    versions = [key for key in data if isinstance(key, str) and key.rpartition("-v")[0] == base]
    groups = [name for name in GROUPS if name != "atari" or GAMES.match(env_id)]
    names = [env_id, *(sorted(versions, reverse=True) if base else []), *groups]
    entry = next((name for name in names if name in data), None)
    if entry is None:
        near = nearest(env_id, [str(key) for key in data])
        hint = f"did you mean {near!r}?" if near else f"it has {_some(list(data))}"
        raise ConfigError(f"{path} has no settings for {env_id!r}; {hint} Name one with --env")
    if not isinstance(data[entry], dict):
        raise ConfigError(
            f"{entry} in {path} is {data[entry]!r}, but settings are a mapping; "
            "is this a file of the zoo?"
        )
    return entry, data[entry]


def _some(names: list[Any]) -> str:
    shown = ", ".join(map(str, names[:10]))
    return f"{shown} and {len(names) - 10} more." if len(names) > 10 else f"{shown}."


def _value(key: Any, value: Any, entry: str) -> Any:
    """Returns a value as it is meant, out of the quotes that YAML left around it."""
    if not isinstance(value, str):
        return value
    if NUMBER.fullmatch(value):
        return float(value)
    return literal.read(value, f"{key} of {entry}") if key in SPELLED else value


def _for_rookery(name: str, env_id: str, stated: dict[str, Any]) -> Draft:
    zoo = ALGORITHMS[name]
    network = zoo.images if stated.get("policy") == "CnnPolicy" else zoo.vectors
    given = zoo.defaults | stated | {"policy_kwargs": network | _part(stated, "policy_kwargs")}
    _refuse_endless(given, env_id)
    draft = Draft(Backend.ROOKERY, zoo.name, env_id, given, frozenset(stated))
    draft.settings |= {"env.id": env_id, "algo.name": zoo.name, **zoo.ours}
    translate(draft, zoo.table, lost)
    return draft


def _for_sb3(name: str, env_id: str, stated: dict[str, Any]) -> Draft:
    _refuse_endless(stated, env_id)
    draft = Draft(Backend.SB3, name, env_id, stated, frozenset(stated))
    draft.settings |= {"backend": "sb3", "env.id": env_id, "sb3.algorithm": name.upper()}
    if name.upper() in SB3_OFF_POLICY:
        draft.settings["replay.capacity"] = 1_000_000  # SB3's own
    translate(draft, SB3, _argument)
    return draft


MAKERS = {Backend.ROOKERY: _for_rookery, Backend.SB3: _for_sb3}


def _part(stated: dict[str, Any], name: str) -> dict[str, Any]:
    part = stated.get(name) or {}
    if not isinstance(part, dict):
        raise ConfigError(
            f"{name} is {part!r}; it must be a mapping or dict(...); correct the file"
        )
    return part


def _refuse_endless(given: dict[str, Any], env_id: str) -> None:
    if "n_timesteps" not in given:
        raise ConfigError(
            f"the settings for {env_id} have no n_timesteps, and a run needs its length; "
            "add n_timesteps to the file"
        )


def _headed(draft: Draft, name: str) -> dict[str, Any]:
    word = re.sub(r"[^a-z0-9]+", "-", f"{name}-{draft.env_id}".lower()).strip("-")
    about = f"{draft.env_id} by {name}, with settings of the RL Baselines3 Zoo"
    return {"name": word, "about": about, **draft.nested()}


def _argument(draft: Draft, name: str, value: Any) -> None:
    """Hands a setting to SB3 as it is."""
    if value is not None:
        draft.settings[f"sb3.kwargs.{name}"] = value


def _whole(key: str) -> Any:
    return lambda draft, name, value: draft.put(key, draft.whole(name, value), name)


def _constant(draft: Draft, name: str, value: Any) -> None:
    number, falls = scheduled(draft, name, value)
    _argument(draft, name, number)
    if falls:
        draft.change(name, value, f"it stays {number}")


def _layers_alone(draft: Draft, name: str, value: Any) -> None:
    for part, inner in _part({name: value}, name).items():
        if part == "net_arch":
            draft.settings["sb3.kwargs.policy_kwargs"] = {part: architecture(inner)}
        else:
            draft.lose(f"{name}.{part}", inner, "backend sb3 takes net_arch alone")


def _stack(draft: Draft, name: str, value: Any) -> None:
    depth = draft.whole(name, value)
    draft.append("env.wrappers", {"FrameStackObservation": {"stack_size": depth}})


def _deviation(draft: Draft, name: str, value: Any) -> None:
    draft.put("sb3.kwargs.action_noise", draft.number(name, value), name)


def _policy(draft: Draft, name: str, value: Any) -> None:
    draft.put("sb3.policy", value, name)


SB3: Table = {
    **ENVIRONMENT,
    "n_envs": _whole("sb3.envs"),
    "policy": _policy,
    "buffer_size": _whole("replay.capacity"),
    "learning_rate": _constant,
    "clip_range": _constant,
    "policy_kwargs": _layers_alone,
    "frame_stack": _stack,
    "noise_std": _deviation,
    "noise_type": noise_type,
    "normalize": lost,
    "normalize_kwargs": lost,
    "callback": lost,
    "vec_env_wrapper": lost,
    "replay_buffer_class": lost,
    "replay_buffer_kwargs": lost,
    "rollout_buffer_kwargs": lost,
    "monitor_kwargs": lost,
}

"""The names of `BASE` that a newer tree has changed, and the translation of what uses them.

    names = Names.of(source, {"env.id": "str", "run.mode": "single|sync|async|device", ...})
    names.argv(["train", "--set", "env.id=rookery.envs.toy:Corridor"])
    names.settings(yaml.safe_load(text))

This is the only table: cases are written in the names of `BASE`, and so are the checkpoints that
`BASE` writes. An entry of `REFERENCES`, `SETTINGS` or `VALUES` is used for a tree that lacks the
old name and has the new one, so entries may be written down before the tree changes.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BASE = "3988f80"  # the commit whose names are the old ones

# Modules, or module:Class, that settings can name: env.id, env.imports, env.wrappers, algo.name,
# net.custom, selfplay.scripted.
REFERENCES: Mapping[str, str] = {
    "rookery.algos.a2c": "rookery.algorithms.a2c",
    "rookery.algos.ddpg": "rookery.algorithms.ddpg",
    "rookery.algos.dqn": "rookery.algorithms.dqn",
    "rookery.algos.impala": "rookery.algorithms.impala",
    "rookery.algos.ppo": "rookery.algorithms.ppo",
    "rookery.algos.r2d2": "rookery.algorithms.r2d2",
    "rookery.algos.sac": "rookery.algorithms.sac",
    "rookery.algos.td3": "rookery.algorithms.td3",
    "rookery.algos.team": "rookery.pathfinding.team_dqn",
    "rookery.algos.tqc": "rookery.algorithms.tqc",
    "rookery.envs.bitflip": "rookery.envs.toy.bit_flip",
    "rookery.envs.games.connect_four": "rookery.games.connect_four",
    "rookery.envs.games.face": "rookery.games.pettingzoo_face",
    "rookery.envs.games.ludo": "rookery.games.ludo",
    "rookery.envs.games.scripted": "rookery.games.scripted_players",
    "rookery.envs.games.tictactoe": "rookery.games.tictactoe",
    "rookery.envs.hold": "rookery.envs.action_repeat",
    "rookery.envs.hold:Hold": "rookery.envs.action_repeat:ActionRepeat",
    "rookery.envs.masks": "rookery.envs.action_masks",
    "rookery.envs.orchard": "rookery.envs.toy.orchard",
    "rookery.envs.pathfinding.parallel": "rookery.pathfinding.world.parallel_env",
    "rookery.envs.pathfinding.pogema": "rookery.pathfinding.world.pogema_env",
    "rookery.envs.pathfinding.team": "rookery.pathfinding.world.team_env",
    "rookery.envs.recall": "rookery.envs.toy.recall",
    "rookery.envs.toy": "rookery.envs.toy.basic",
    "rookery.nets.boards": "rookery.games.board_network",
    "rookery.nets.boards:Board": "rookery.games.board_network:BoardNetwork",
    "rookery.selfplay.afterstates": "rookery.games.ludo_network",
}

# section.key → its new name; None: the setting has left, and what it said is dropped.
SETTINGS: Mapping[str, str | None] = {
    "algo.clip": "algo.clip_range",
    "algo.dropped": "algo.dropped_quantiles",
    "algo.entropy_bonus": "algo.ent_coef",
    "algo.entropy_target": "algo.target_entropy",
    "algo.first_temperature": "algo.initial_temperature",
    "algo.policy_period": "algo.policy_delay",
    "algo.target_noise": "algo.target_policy_noise",
    "algo.value_weight": "algo.vf_coef",
    "replay.batch": "replay.batch_size",
    "replay.draw": "replay.sampling",
    "replay.first_priority": "replay.initial_priority",
    "replay.warmup": "replay.learning_starts",
    "selfplay.judge": "selfplay.eval_opponent",
    "selfplay.judge_opening": "selfplay.eval_opening",
    "device.curriculum": "algo.curriculum",
    "device.lecture": "algo.guided_steps",
    "device.pupils": "algo.student_share",
    "device.teams": "algo.teams",
    "device.trial": "algo.policy_steps",
    "sharing.guard": None,
}

# section.key, by its old name → old value → new value, where a setting is a choice among words.
VALUES: Mapping[str, Mapping[str, str]] = {}

# section.key of settings that a newer tree has added → the value with which it computes as `BASE`.
ADDED: Mapping[str, str] = {"net.init": "torch"}

# Section → the algorithm it has become settings of. In the stored settings of a run with another
# algorithm, where they meant nothing, they are dropped.
BECAME_OF: Mapping[str, str] = {"device": "team"}

# What a checkpoint holds besides settings. The newer tree is the one this file belongs to, so these
# are always used; a checkpoint that has the new names already is left as it is.
# Key of state.json, or a path such as actors.progress → its new name.
STATE: Mapping[str, str] = {
    "crew": "actors",
    "driver": "run",
    "pool": "replay",
    "board": "weight_store",
}
# Beginning of a name in arrays.safetensors → its new beginning.
ARRAYS: Mapping[str, str] = {
    "crew:": "actors:",
    "pool:": "replay:",
    "board:": "weight_store:",
}
MANIFEST: Mapping[str, Any] = {"format": 2}  # field of MANIFEST.json → what the newer tree writes

_REFERENCE = re.compile(r"\brookery(?:\.\w+)+(?::[A-Za-z_]\w*)?")


class Names(NamedTuple):
    """What one tree calls otherwise."""

    references: Mapping[str, str] = {}
    renamed: Mapping[str, str | None] = {}  # settings
    values: Mapping[str, Mapping[str, str]] = {}
    added: Mapping[str, str] = {}  # settings

    @classmethod
    def of(cls, source: Path, known: Mapping[str, str]) -> "Names":
        """Returns the names for a tree with this source folder and these settings → types."""
        renamed = {
            old: new
            for old, new in SETTINGS.items()
            if old not in known and (new is None or new in known)
        }
        return cls(
            {old: new for old, new in REFERENCES.items() if _moved(source, old, new)},
            renamed,
            {
                key: _changed(known.get(renamed.get(key) or key, ""), values)
                for key, values in VALUES.items()
            },
            {key: value for key, value in ADDED.items() if key in known},
        )

    def argv(self, words: Sequence[str]) -> list[str]:
        """Translates a command line: the settings after --set, and references anywhere."""
        given = list(words)
        if "--set" in given:
            given += [w for key, value in self.added.items() for w in ("--set", f"{key}={value}")]
        said: list[str] = []
        while given:
            word = given.pop(0)
            if word != "--set":
                said.append(self.text(word))
                continue
            key, _, value = given.pop(0).partition("=")
            new = self.renamed.get(key, key)
            if new is not None:
                value = self.values.get(key, {}).get(value, value)
                said += ["--set", f"{new}={self.text(value)}"]
        return said

    def settings(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Translates the settings of a run, as its config.yaml has them."""
        for key, values in self.values.items():
            if isinstance(value := _get(nested, key), str) and value in values:
                nested = _put(nested, key, values[value])
        return dict(self.plain(_renamed(nested, self._renamed_for(_get(nested, "algo.name")))))

    def _renamed_for(self, algorithm: Any) -> dict[str, str | None]:
        """Returns the renamed settings as a run with this algorithm has them."""
        return {
            old: new if BECAME_OF.get(old.partition(".")[0], algorithm) == algorithm else None
            for old, new in self.renamed.items()
        }

    def plain(self, value: Any) -> Any:
        """Translates the references in every text of nested dicts and lists, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.plain(key): self.plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.plain(inner) for inner in value]
        return value

    def text(self, text: str) -> str:
        return _REFERENCE.sub(lambda match: self._reference(match[0]), text)

    def _reference(self, name: str) -> str:
        if name in self.references:
            return self.references[name]
        module, colon, attribute = name.partition(":")
        return self.references.get(module, module) + colon + attribute


def state(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the keys of a state.json."""
    return _renamed(numbers, STATE)


def array(name: str) -> str:
    """Renames one array of a checkpoint."""
    for old, new in ARRAYS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _moved(source: Path, old: str, new: str) -> bool:
    return not _defined(source, old) and _defined(source, new)


def _defined(source: Path, reference: str) -> bool:
    """Looks whether a module's file is there, and defines what stands behind the colon."""
    module, _, attribute = reference.partition(":")
    path = source.joinpath(*module.split(".")).with_suffix(".py")
    if not attribute or not path.is_file():
        return path.is_file()
    return re.search(rf"^(class|def) {attribute}\b", path.read_text(), re.M) is not None


def _changed(choice: str, values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values that a choice, such as single|sync|async, has no longer."""
    words = choice.split("|")
    return {old: new for old, new in values.items() if old not in words and new in words}


def _renamed(nested: Mapping[str, Any], table: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns a copy in which every path of the table has its new name, or has left."""
    copy: Mapping[str, Any] = nested
    for old, new in table.items():
        if (value := _get(copy, old)) is not _ABSENT:
            copy = _without(copy, old)
            copy = copy if new is None else _put(copy, new, value)
    return dict(copy)


_ABSENT = object()


def _get(nested: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(nested, Mapping) or key not in nested:
            return _ABSENT
        nested = nested[key]
    return nested


def _put(nested: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {**nested, first: _put(nested.get(first) or {}, rest, value) if rest else value}


def _without(nested: Mapping[str, Any], path: str) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    if rest:
        return {**nested, first: _without(nested[first], rest)}
    return {key: value for key, value in nested.items() if key != first}

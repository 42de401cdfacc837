"""Plugins: classes and functions that packages add to the core library, by import name.

    load("rookery.envs.toy.basic:Corridor")          # imports an object by name
    names("games")["ludo"]                           # "rookery.games.ludo:Ludo"

A package's `plugin` module has a constant `PLUGIN`, a `Plugin` that names its objects in strings,
so that reading it imports neither torch nor the package's other modules. Packages that are not
installed are skipped. Another distribution registers a `Plugin` of its own by an entry point in the
group `rookery.plugins`, such as `mypackage.plugin:PLUGIN`.

Only this module and `rookery/__init__.py` import modules whose names are strings.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

PACKAGES = (
    "rookery.sharing",
    "rookery.selfplay",
    "rookery.sb3",
    "rookery.pathfinding",
    "rookery.games",
)
GROUP = "rookery.plugins"  # entry point group of other distributions' plugins


class Verb(NamedTuple):
    """A subcommand of the command `rookery`: the module that implements it, and a description."""

    module: str  # with `add_arguments` and `run`
    about: str


class AlgorithmNames(NamedTuple):
    """Import names of the two classes of a learning algorithm, and its description.

    `settings` names the class of its settings, `algorithm` the class that implements it.
    `batched_env` names an environment that runs on the GPU, if the algorithm can train on one.
    """

    settings: str  # module:Class, an `AlgoConfig`
    algorithm: str  # module:Class
    about: str
    batched_env: str | None = None  # module:object, a `BatchedEnv`


class BackendNames(NamedTuple):
    """Import name of a backend, and the settings that its runs use; all others are refused.

    A section in the place of a setting, such as `env`, stands for all its settings.
    """

    backend: str  # module:object, a `Backend`
    settings: tuple[str, ...]  # dotted keys


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """Everything that one package adds to the core library, as import names.

    An import name is `module:attribute`, or the name of a module or package.
    """

    verbs: Mapping[str, Verb] = field(default_factory=dict)
    algorithms: Mapping[str, AlgorithmNames] = field(default_factory=dict)
    games: Mapping[str, str] = field(default_factory=dict)  # name → a `Games`
    scripted_players: Mapping[str, str] = field(default_factory=dict)  # game's name → a `Player`
    text_boards: Mapping[str, str] = field(default_factory=dict)  # game's name → obs, seat → text
    scenarios: str | None = None  # a package that holds YAML files
    backends: Mapping[str, BackendNames] = field(default_factory=dict)  # by setting `backend`
    opponents: str | None = None  # an `OpponentsBuilder`
    replay_peers: str | None = None  # a `ReplayPeersBuilder`
    cleanup: str | None = None  # a `Cleanup`


@cache
def plugins() -> tuple[Plugin, ...]:
    """Returns the installed plugins: those of Rookery's packages, then of other distributions."""
    from importlib.metadata import entry_points  # takes 20 ms, which most imports do not need

    own = [f"{package}.plugin:PLUGIN" for package in PACKAGES if _exists(f"{package}.plugin")]
    others = [point.value for point in entry_points(group=GROUP)]
    return tuple(load(name) for name in (*own, *others))


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing too
        return False


def verbs() -> dict[str, Verb]:
    return {name: verb for plugin in plugins() for name, verb in plugin.verbs.items()}


def algorithms() -> dict[str, AlgorithmNames]:
    return {name: row for plugin in plugins() for name, row in plugin.algorithms.items()}


def backends() -> dict[str, BackendNames]:
    return {name: row for plugin in plugins() for name, row in plugin.backends.items()}


def names(table: str) -> dict[str, str]:
    """Returns the mapping (name to import name) in one field of `Plugin`, merged over all plugins.

    `table` is the field: games, scripted_players or text_boards.
    """
    return {key: name for plugin in plugins() for key, name in getattr(plugin, table).items()}


def each(field: str) -> list[str]:
    """Returns the import names in one optional field of `Plugin`, from all plugins that set it.

    `field` is scenarios, opponents, replay_peers or cleanup.
    """
    return [name for plugin in plugins() if (name := getattr(plugin, field)) is not None]


def load(name: str) -> Any:
    """Imports the object `module:attribute`; a missing one raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))


def load_module(name: str) -> ModuleType:
    """Imports and returns a module by name; exceptions of the import pass through."""
    return importlib.import_module(name)

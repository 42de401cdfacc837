"""Strings that name a module of the library: a type checker sees none of them."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import rookery

SRC = Path(rookery.__file__).parent
NAME = re.compile(r"rookery(\.[a-z_]+)+(:\w+)?")


def named() -> list[str]:
    """Returns `module` and `module:attribute` as they stand in the source and in scenarios."""
    found = set()
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if NAME.fullmatch(node.value) else set()
    for path in SRC.rglob("*.yaml"):
        found |= {match.group(0) for match in NAME.finditer(path.read_text())}
    return sorted(found - GROUPS - APPLICATIONS)


GROUPS = {"rookery.plugins", "rookery.algorithms"}  # also the names of entry point groups
APPLICATIONS = {"rookery.pathfinding", "rookery.games"}  # left out where they are not installed


@pytest.mark.parametrize("name", named())
def test_what_a_string_names_is_there(name: str) -> None:
    module, _, attribute = name.partition(":")

    found = importlib.import_module(module)

    assert not attribute or hasattr(found, attribute)


def test_every_public_name_is_where_the_package_looks_for_it() -> None:
    assert all(getattr(rookery, name) is not None for name in rookery.__all__)

"""Internals of torch and Ray are used in one file, and are there in the versions installed."""

import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest
import torch

import rookery
from rookery.engines import library_internals

PRIVATE = {  # names that the file uses, by module
    "torch.optim": ["Optimizer"],
    "ray._private.worker": ["print_to_stdstream", "shutdown"],
    "ray._private.ray_constants": [
        "ENABLE_RAY_CLUSTER",
        "ENABLE_RAY_CLUSTERS_ENV_VAR",
        "IS_WINDOWS_OR_OSX",
        "env_bool",
    ],
    "ray._raylet": ["Config", "AuthenticationTokenLoader"],
}
INTERNAL = re.compile(r"ray\._private|_raylet|__dynamo_disable|torch\._dynamo|sys\.excepthook =")


def test_no_other_file_uses_internals():
    source = Path(rookery.__file__).parent
    users = [p.name for p in source.rglob("*.py") if INTERNAL.search(p.read_text())]

    assert users == ["library_internals.py"]


@pytest.mark.parametrize("library", library_internals.TESTED)
def test_the_installed_version_is_the_one_it_was_written_for(library):
    """Where this fails, read the docstrings of that file, check each use, and change `TESTED`."""
    installed = importlib.metadata.version(library)

    assert installed.startswith(library_internals.TESTED[library])  # one of several


@pytest.mark.parametrize("module", PRIVATE)
def test_all_names_are_there(module):
    pytest.importorskip("ray")

    assert set(PRIVATE[module]) <= set(dir(importlib.import_module(module)))


def test_the_constructor_of_an_optimizer_is_what_torch_hides_from_its_compiler():
    hidden = [m for m in vars(torch.optim.Optimizer).values() if hasattr(m, "__wrapped__")]

    assert hidden

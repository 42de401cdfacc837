"""Rookery: many actors, one learner, and runs that learn from each other.

    run = rookery.train("cartpole", seed=3)
    policy = rookery.load(run.run_dir)

The public names are imported when they are first used, so that `import rookery` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Ask": "rookery.event",
    "Config": "rookery.config.schema",
    "Policy": "rookery.loops.front",
    "RookeryError": "rookery.errors",
    "Run": "rookery.loops.front",
    "events": "rookery.loops.front",
    "load": "rookery.loops.front",
    "train": "rookery.loops.front",
}
__all__ = [
    "Ask",
    "Config",
    "Policy",
    "RookeryError",
    "Run",
    "__version__",
    "events",
    "load",
    "train",
]

if TYPE_CHECKING:
    from rookery.config.schema import Config
    from rookery.errors import RookeryError
    from rookery.event import Ask
    from rookery.loops.front import Policy, Run, events, load, train


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rookery' has no attribute {name!r}; it has {__all__}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

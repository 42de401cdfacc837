"""Uses of private functions of torch and Ray, for which there is no public interface.

This is the only file that calls or changes them. `TESTED` lists the library versions it was written
for; a test reports names that are missing in the installed versions.
"""

import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rookery import plugins

TESTED = {"torch": ("2.11", "2.13"), "ray": ("2.60",)}


def import_compiler_in_background() -> None:
    """Imports torch's compiler in a thread, while actors start.

    Creating the first torch optimizer of a process would import the compiler, which takes seconds,
    only to exclude the optimizer's methods from compilation. This function marks those methods as
    excluded, so that the optimizer need not wait for the import.
    """
    import torch

    for method in vars(torch.optim.Optimizer).values():
        hidden = getattr(method, "__wrapped__", None)
        if hidden is not None:
            hidden.__dict__.setdefault("__dynamo_disable", hidden)
    threading.Thread(target=plugins.load_module, args=("torch._dynamo",), name="import").start()


def import_ray() -> ModuleType:
    """Imports ray, and removes the exception hook that ray installs.

    The hook would contact the head node of the cluster, which may be gone.
    """
    if (ray := sys.modules.get("ray")) is not None:  # called several times for each message
        return ray
    hook = sys.excepthook
    ray = plugins.load_module("ray")
    sys.excepthook = hook
    return ray


@contextlib.contextmanager
def silent_ray() -> Iterator[None]:
    """Context in which Ray neither logs nor prints to standard output.

    Even with log_to_driver=False Ray prints lines, which would corrupt the output of --json.
    """
    logger, worker = logging.getLogger("ray"), _internal("worker")
    level, speak = logger.level, worker.print_to_stdstream
    logger.setLevel(logging.CRITICAL + 1)
    worker.print_to_stdstream = lambda *args, **options: None
    try:
        yield
    finally:
        worker.print_to_stdstream = speak
        logger.setLevel(level)


def reread_ray_environment() -> None:
    """Makes Ray read its environment variables again, if Ray is already imported."""
    if "ray" in sys.modules:
        constants = _internal("ray_constants")
        constants.ENABLE_RAY_CLUSTER = constants.env_bool(
            constants.ENABLE_RAY_CLUSTERS_ENV_VAR, not constants.IS_WINDOWS_OR_OSX
        )
        raylet = plugins.load_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def skip_ray_shutdown_at_exit() -> None:
    """Removes Ray's exit handler, so that this process can exit while Ray hangs."""
    atexit.unregister(_internal("worker").shutdown)


def _internal(name: str) -> Any:  # type: ignore[explicit-any]  # a module whose names are replaced
    return plugins.load_module(f"ray._private.{name}")

"""`HangWatch`: ends a call of an environment, in this process, that does not return in time.

with watched_calls("my:Env", limit_s=60.0) as calls:   # StalledError after 60 s in one call
    envs = make(config, 8, calls=calls)
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rookery.envs.env_calls import EnvCalls
from rookery.errors import StalledError
from rookery.runtime.timeouts import CLOCK, Patience
from rookery.runtime.watchdog import Hung, Watchdog

REMEDY = "correct the environment, or raise the limit"


class Heartbeat(Protocol):
    """Interface of the time of the last heartbeat; a `Ring` in shared memory has it too."""

    def beat(self) -> None: ...

    @property
    def silence_s(self) -> float:
        """Seconds since the last call of `beat`."""


class LocalHeartbeat:
    """Time of the last heartbeat of code in this process."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        self._last = time.clock_gettime(CLOCK)

    @property
    def silence_s(self) -> float:
        return time.clock_gettime(CLOCK) - self._last


class HangWatch:
    """Watchdog thread that checks the heartbeat of the environments that run in this process.

    Code of this process that hangs cannot be killed and restarted. `Hung` is raised in it instead,
    if there is no beat of `heartbeat` for `limit_s` seconds.
    """

    def __init__(self, name: str, limit_s: float, calls: EnvCalls, remedy: str = REMEDY):
        """Starts the watchdog thread.

        `name` is that of the environment and `limit_s` the setting `actor.env_step_timeout_s`.
        `calls` is the record that the environments were made with.
        """
        self.calls = calls
        self._name, self._limit_s, self._remedy = name, limit_s, remedy
        self.heartbeat: Heartbeat | None = None  # of code that runs now; None: nothing is watched
        self._patience = Patience()
        self._watchdog = Watchdog(self._hung)

    def _hung(self) -> str | None:
        """Returns an error message if the code hangs, else None; runs in the watchdog thread."""
        heartbeat = self.heartbeat
        if heartbeat is None:
            self._patience = Patience()
            return None
        if not self._patience.at_end(heartbeat.silence_s, self._limit_s):
            return None
        call = f" in {self.calls.running}" if self.calls.running else ""
        return (
            f"{self._name} has not answered for {self._patience.silent_s:.0f} s{call} "
            f"(actor.env_step_timeout_s is {self._limit_s:g}); {self._remedy}"
        )

    def close(self) -> None:
        self._watchdog.close()


@contextlib.contextmanager
def watched_calls(name: str, limit_s: float, calls: EnvCalls | None = None) -> Iterator[EnvCalls]:
    """Context manager around code that makes or calls environments; yields a record for `make`.

    `calls` is the record of environments that were made before. Raises StalledError if one call of
    an environment takes longer than `limit_s` seconds.
    """
    watch, heartbeat = HangWatch(name, limit_s, calls or EnvCalls()), LocalHeartbeat()
    watch.calls.beat = heartbeat.beat
    watch.heartbeat = heartbeat
    try:
        yield watch.calls
    except Hung as hung:
        raise StalledError(str(hung)) from None
    finally:
        watch.heartbeat = None
        watch.close()

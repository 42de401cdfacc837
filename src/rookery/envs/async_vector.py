"""Environments of one actor in processes of their own, which step at the same time.

It is Gymnasium's `AsyncVectorEnv`. What that lacks is here: faults that say which environment
failed and how, the functions of saved states, and processes that end when their parent ends.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from rookery.envs.env_fault import ENV_ERRORS, Fault, raised
from rookery.envs.nested import zeros

Env: TypeAlias = gym.Env[Any, Any]

FAULT = "fault"  # key of an info: what went wrong in this environment
GRACE_S = 1.0  # for a process that has closed its pipe to end
LOOK_S = 1.0  # between two checks of whether the parent process still runs


class AsyncVector(AsyncVectorEnv):
    """Vector of environments that step at the same time, each in a process of its own.

    The processes are forked, so that the user's main module is not imported again.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], first: Env) -> None:
        """Starts the processes; `first` is an environment of this one, to read the spaces from."""
        makers = [_in_process(make, k, os.getpid(), first) for k, make in enumerate(factories)]
        mode = AutoresetMode.SAME_STEP
        with warnings.catch_warnings():  # the child runs nothing but its environment
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            try:  # copy=False, since the codec copies
                super().__init__(makers, copy=False, context="fork", autoreset_mode=mode)
            except EOFError as error:
                raise RuntimeError("its process ended and wrote why to standard error") from error

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self._answered(super().reset, **kwargs)
        _raise_faults(info)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self._answered(super().step, actions)
        _raise_faults(result[4])
        return result  # type: ignore[no-any-return]

    def each(self, function: Callable[..., Any], *args: Sequence[Any]) -> list[Any]:
        """Calls a function of a module with each environment, in the environment's process.

        `args` have a value for each environment; returns a list of the results.
        """
        answers = self._answered(super().call, "applied", function, args)
        _raise_faults({FAULT: [fault for _, fault in answers]})
        return [answer for answer, _ in answers]

    def _answered(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the vector; raises `Fault` if a process has ended without an answer."""
        try:
            return call(*args, **kwargs)
        except (EOFError, ConnectionError) as error:
            gone = wait([process.sentinel for process in self.processes], GRACE_S)
            lost = [process for process in self.processes if process.sentinel in gone]
            for process in lost:
                process.join(GRACE_S)  # then it has its exit code
            raise Fault(
                f"its process has ended (exit code {[process.exitcode for process in lost]}); see "
                "what it wrote to standard error, and the kernel's log for a lack of memory",
                self.processes.index(lost[0]) if lost else None,
            ) from error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Closes all environments; ends their processes where one is lost or a call was broken."""
        lost = any(not process.is_alive() for process in self.processes)
        if lost or self._state is not AsyncState.DEFAULT:
            self._state, terminate = AsyncState.DEFAULT, True
        super().close_extras(timeout, terminate)
        failed = [index for index, process in enumerate(self.processes) if process.exitcode]
        if failed and not terminate:
            raise Fault("close failed; its process wrote why to standard error", failed[0])


class InProcess(gym.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper of an environment in a process of its own.

    An error is returned in the info, not raised: Gymnasium's vector would lose which environment
    it was. The next call then is `close`.
    """

    def __init__(self, env: Env, index: int) -> None:
        super().__init__(env)
        self._index = index

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        answer, fault = _tried("reset", self.env.reset, **kwargs)
        return answer or (zeros(self.observation_space), {FAULT: fault})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer, fault = _tried("step", self.env.step, action)
        return answer or (zeros(self.observation_space), 0.0, False, False, {FAULT: fault})

    def applied(self, function: Callable[..., Any], args: tuple[Sequence[Any], ...]) -> Any:
        """Returns what `function` returns for this environment, and the text of its fault."""
        own = [values[self._index] for values in args]
        return _tried(function.__name__, function, self.env, *own)


def _tried(name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    try:
        return call(*args, **kwargs), None
    except Fault as fault:
        return None, fault.what
    except (*ENV_ERRORS, KeyboardInterrupt) as error:  # the process ignores the user's Ctrl+C
        return None, raised(name.strip("_"), error)


def _raise_faults(info: Mapping[str, Any]) -> None:
    for index, what in enumerate(info.get(FAULT, ())):
        if what is not None:
            raise Fault(what, index)


def _in_process(make: Callable[[], Env], index: int, parent: int, first: Env) -> Callable[[], Env]:
    """Returns the constructor of an environment in its process.

    Gymnasium's vector calls that of the first one in the parent process too, for the spaces.
    """

    def made() -> Env:
        if os.getpid() == parent:
            return first
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl+C means
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler was inherited
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        return InProcess(make(), index)

    return made


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, even if its environment hangs."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)

"""Exceptions of the library, all derived from `RookeryError`.

RookeryError
├── ConfigError             settings or arguments are invalid
├── EnvError                an environment raised or violated its API
├── ProtocolError           code called an interface against its rules
│   ├── EmptyReplayError    a batch was sampled from an empty replay buffer
│   ├── ClosedError         an object was used after it was closed
│   └── RegistryError       replay buffers that runs share were used against the rules
├── LostError               a process, host or device that a run needs is gone
├── StalledError            expected data missed its deadline
├── CheckpointError         a checkpoint cannot be saved or restored
└── RefusedError            a parameter server or its client refused a message
    └── BudgetError         one more round would exceed the differential-privacy budget

The command `rookery` exits with code 2 after a `ConfigError` and with 3 after any other. An error
message has three parts: what was given, what is allowed, what to do.
"""

from typing import NamedTuple


class RookeryError(Exception):
    """Base class of all errors of this library; `exit_code` is that of the command `rookery`."""

    exit_code = 3


class ConfigError(RookeryError, ValueError):
    """The settings or arguments are invalid, so the run cannot start."""

    exit_code = 2


class EnvError(RookeryError):
    """An environment raised an exception, or violated its declared spaces or the API."""


class ProtocolError(RookeryError, RuntimeError):
    """Code called an interface against its rules: in a wrong order, or with a forbidden value.

    An example of the latter is a policy's action that the action mask forbids.
    """


class EmptyReplayError(ProtocolError):
    """A batch was sampled from a replay buffer that holds no complete transition yet."""


class ClosedError(ProtocolError):
    """A shared-memory ring buffer, weight store or process connection was used after its end."""


class RegistryError(ProtocolError):
    """The registry, which lists the replay buffers that several runs share, was used wrongly.

    Examples: it is stopped, its folder was removed, or a replay buffer is not registered in it.
    """


class LostError(RookeryError):
    """A process, host or device that a run needs has died or cannot be reached."""


class StalledError(RookeryError, TimeoutError):
    """Data that one process expects from another did not arrive before the deadline."""


class CheckpointError(RookeryError):
    """A checkpoint could not be saved or restored."""


class RefusedError(RookeryError):
    """A parameter server refused a client's message, or a client refused the server's answer.

    `code` is the reason as one machine-readable word.
    """

    def __init__(self, message: str, code: str):
        super().__init__(message, code)  # both, so that it can be copied and pickled
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class BudgetError(RefusedError):
    """One more round of federated training would exceed the differential-privacy budget."""

    def __init__(self, message: str, code: str = "budget"):
        super().__init__(message, code)


class Terminated(BaseException):
    """Raised in the main thread by Rookery's handler of SIGTERM and SIGHUP, before a run begins.

    It is not a SystemExit: one that is raised inside an environment comes from the environment, and
    is an error. `Interrupts` turns it into a SystemExit with the exit code of the signal.
    """


def noted(error: RookeryError, its_traceback: str) -> RookeryError:
    """Adds the traceback text of another process to an error from there, as a note; returns it.

    An empty text adds nothing.
    """
    if its_traceback:
        error.add_note(its_traceback)
    return error


class RoleFailed(NamedTuple):
    """An error that ended a process or a worker object in it, as its supervisor hears of it.

    `summary` is a short description, such as the exception's type and message.
    """

    summary: str
    traceback: str
    final: bool  # True where another try would fail in the same way: a wrong request
    error: Exception | None = None  # itself, where it was raised in this process
    environment: bool = False  # True where it is an error of an environment

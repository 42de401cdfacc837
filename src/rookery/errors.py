"""Exceptions of the library.

RookeryError
├── ConfigError       invalid settings: the run cannot start        → exit 2
├── EnvError          an environment raised or violated its API     → exit 3
├── ProtocolError     code called an interface against its rules
│   ├── EmptyReplayError
│   ├── ClosedError
│   └── RegistryError  a pool of shared replay buffers was used after its stop
├── LostError         a process or device that a run needs is gone  → exit 3
│   └── EvaluatorLostError
├── StalledError      expected data missed its deadline             → exit 3
├── CheckpointError   cannot save or restore                        → exit 3
└── RefusedError      a parameter server or its client refused a message
    └── BudgetError   one more round would exceed the privacy budget

An error message has three parts: what was given, what is allowed, what to do.
"""


class RookeryError(Exception):
    """Base class of all errors that this library raises."""

    exit_code = 3


class ConfigError(RookeryError, ValueError):
    """The settings or arguments are invalid, so the run cannot start."""

    exit_code = 2


class EnvError(RookeryError):
    """An environment raised an exception, or violated its spaces or the API of environments."""


class ProtocolError(RookeryError, RuntimeError):
    """Code called an interface against its rules: in a wrong order, or with a forbidden value.

    An example of the latter is a policy's action that the action mask forbids.
    """


class EmptyReplayError(ProtocolError):
    """A batch was sampled from a replay buffer that holds no complete transition yet."""


class ClosedError(ProtocolError):
    """A replay ring buffer, weight store or connection was used after it had been closed."""


class RegistryError(ProtocolError):
    """The registry of a pool of shared replay buffers was used after it had been stopped."""


class LostError(RookeryError):
    """A process, host or device that a run needs has died or cannot be reached."""


class EvaluatorLostError(LostError):
    """The evaluation process crashed more times in a row than it may be restarted."""


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
    """One more federated round would exceed the budget of differential privacy."""

    def __init__(self, message: str, code: str = "budget"):
        super().__init__(message, code)


def noted(error: RookeryError, its_traceback: str) -> RookeryError:
    """Adds the traceback text of another process to an error raised there; returns the error.

    An empty text adds nothing.
    """
    if its_traceback:
        error.add_note(its_traceback)
    return error

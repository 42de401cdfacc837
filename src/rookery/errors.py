"""What can go wrong, as a tree.

RookeryError
├── ConfigError       the run cannot start as asked                 → exit 2
├── EnvError          the environment broke its contract            → exit 3
├── ProtocolError     our own order of calls was broken
│   ├── EmptyReplayError
│   ├── ClosedError
│   └── RegistryError  a pool was used that is stopped or gone
├── LostError         something a run needs is gone                 → exit 3
│   └── EvaluatorLostError
├── StalledError      nothing arrived within its deadline           → exit 3
├── CheckpointError   cannot save or restore                        → exit 3
└── RefusedError      a server does not take an update, or a client an answer
    └── BudgetError   one more round would pass the privacy budget

A message has three parts: what was given, what is allowed, what to do.
"""


class RookeryError(Exception):
    """Every error this library raises on purpose."""

    exit_code = 3


class ConfigError(RookeryError, ValueError):
    """The run cannot start as asked."""

    exit_code = 2


class EnvError(RookeryError):
    """An environment returned something its own spaces or the Gymnasium API forbid."""


class ProtocolError(RookeryError, RuntimeError):
    """Our own order of calls was broken."""


class EmptyReplayError(ProtocolError):
    """A batch was asked of a replay that holds no complete row."""


class ClosedError(ProtocolError):
    """A ring, board or connection was used after it had been closed."""


class RegistryError(ProtocolError):
    """A pool of shared buffers was used that has been stopped, or is gone."""


class LostError(RookeryError):
    """Something a run needs is gone for good."""


class EvaluatorLostError(LostError):
    """The evaluator died more often in a row than it may be restarted."""


class StalledError(RookeryError, TimeoutError):
    """Nothing arrived within its deadline."""


class CheckpointError(RookeryError):
    """A checkpoint could not be saved or restored."""


class RefusedError(RookeryError):
    """An update or a message that is not taken; `code` says why, in one word for programs."""

    def __init__(self, message: str, code: str):
        super().__init__(message, code)  # both, so that a copy can be made of it
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class BudgetError(RefusedError):
    """One more round would tell more about a client than was promised."""

    def __init__(self, message: str, code: str = "budget"):
        super().__init__(message, code)


def noted(error: RookeryError, its_traceback: str) -> RookeryError:
    """Gives an error the traceback of the process in which it began."""
    if its_traceback:
        error.add_note(its_traceback)
    return error

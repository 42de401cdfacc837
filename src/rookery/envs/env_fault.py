"""`Fault`: the error for an exception or an invalid return value of an environment.

Code that calls an environment, or checks what it returns, raises a `Fault`. The class `Envs`, the
vector of environments, catches it and raises an `EnvError` that also names the environment and the
number of its step.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rookery.errors import EnvError, RookeryError

STEP_FORM = (
    "step must return (obs, reward, terminated, truncated, info): terminated is true when the task "
    "itself ended, truncated when something else, such as a time limit, cut it short"
)
OLD_STEP = (
    "that is the form of the old gym API, (obs, reward, done, info); return "
    "(obs, reward, terminated, truncated, info) instead: `done` becomes `terminated`, or "
    "`truncated` where only a time limit was reached"
)
RESET_FORM = "reset(self, *, seed=None, options=None) must return (obs, info), info being a dict"

# What a Python error inside an environment usually means: (part of its text, what to do).
ADVICE = (
    ("expected 5, got 4", OLD_STEP),
    ("unexpected keyword argument 'seed'", RESET_FORM),
    ("unexpected keyword argument 'options'", RESET_FORM),
)


# What the code of an environment may raise. `sys.exit` in it does not end the process: the run
# would end without a message, and with the exit code that the environment chose.
ENV_ERRORS = (Exception, SystemExit)
EnvException: TypeAlias = Exception | SystemExit | KeyboardInterrupt  # the last in workers alone


class Fault(EnvError):
    """Error of an environment that raised an exception or returned an invalid value.

    `index` is the environment's index in the vector of environments, or None if it is not known.
    """

    def __init__(self, what: str, index: int | None = None) -> None:
        super().__init__(what if index is None else f"environment {index}: {what}")
        self.what, self.index = what, index


def raised(call: str, error: EnvException) -> str:
    """Returns an error message for the exception `error`, raised by an environment's method `call`.

    For common mistakes, such as the old gym API, the message says how to correct them; for all
    other exceptions it names the file and line that raised them.
    """
    text = f"{call} raised {type(error).__name__}: {error}"
    advice = next((advice for part, advice in ADVICE if part in str(error)), "")
    return f"{text}; {advice or _place(error)}"


@contextmanager
def named_errors(name: str, call: str) -> Iterator[None]:
    """Context of a method `call` of the user's code: its errors name the environment `name`."""
    try:
        yield
    except RookeryError:
        raise
    except ENV_ERRORS as error:  # a user's code may raise anything
        raise EnvError(f"{name}: {raised(call, error)}") from error


def _place(error: EnvException) -> str:
    """Returns text that names the file and line that raised `error`, for an error message."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"look at {frames[-1].filename}, line {frames[-1].lineno}" if frames else "look at its code"
    )

"""What an environment did wrong, before it is known which environment it was.

Whoever looks at one answer (a codec, a guard) raises a `Fault`; the door that knows the names and
counts the steps turns it into an `EnvError` that says where it happened.
"""

import traceback

from rookery.errors import EnvError

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


class Fault(EnvError):
    """An answer that cannot be used. `index` is the environment's place, where one is known."""

    def __init__(self, what: str, index: int | None = None) -> None:
        super().__init__(what if index is None else f"environment {index}: {what}")
        self.what, self.index = what, index


def raised(call: str, error: Exception) -> str:
    """Says that `call` raised `error` and where, and what to do where the error is a known one."""
    text = f"{call} raised {type(error).__name__}: {error}"
    advice = next((advice for part, advice in ADVICE if part in str(error)), "")
    return f"{text}; {advice or _place(error)}"


def _place(error: Exception) -> str:
    """Names the line that raised: whoever reads a message may never see the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"look at {frames[-1].filename}, line {frames[-1].lineno}" if frames else "look at its code"
    )

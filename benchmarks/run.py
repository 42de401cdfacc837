"""Trials: each runs a contender's script in a process of its own, on one thread."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import Answer, Contender, Runs
from benchmarks.report import figure
from rookery.errors import LostError, StalledError

FOLDER = Path(__file__).parent  # of the scripts
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Trial(NamedTuple):
    """What one round asks of a contender."""

    seed: int
    seconds: float
    deadline_s: float


def interleave(
    contenders: Sequence[Contender],
    trials: Sequence[Trial],
    attempt: Callable[[Contender, Trial], Answer],
) -> Runs:
    """Returns the answers of every contender. A round is over when each has had one trial."""
    runs: Runs = {contender.name: [] for contender in contenders}
    for trial in trials:
        for contender in contenders:
            runs[contender.name].append(attempt(contender, trial))
    return runs


def attempt(contender: Contender, trial: Trial) -> Answer:
    """Runs one trial and returns what its script printed last."""
    script, *arguments = contender.command
    command = [sys.executable, str(FOLDER / script), *arguments]
    command += ["--seed", str(trial.seed), "--seconds", str(trial.seconds)]
    # removed after the trial, also after one that was killed: checkpoints are large
    with tempfile.TemporaryDirectory(prefix="rookery-bench-", ignore_cleanup_errors=True) as temp:
        code, out, err = _process(command, trial.deadline_s, temp)
    if code != 0:
        raise LostError(
            f"the contender {contender.name} ended with exit code {code} where 0 is expected; "
            f"try it alone: {' '.join(command)}\n{err[-2000:]}"
        )
    answer: Answer = {"seed": trial.seed, **json.loads(out.strip().rpartition("\n")[2])}
    _show(contender.name, answer)
    return answer


def _process(command: Sequence[str], deadline_s: float, temp: str) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr. Nothing of the child outlives this call."""
    environ = os.environ | dict.fromkeys(ONE_THREAD, "1") | {"TMPDIR": temp}
    # a session of its own: the processes that the child has started end with it
    child = subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired as late:
        raise StalledError(
            f"{' '.join(command)} took more than the {deadline_s:.0f} s allowed; is the machine "
            "busy with something else?"
        ) from late
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, out, err


def _show(name: str, answer: Answer) -> None:
    """Prints the result of a trial on stderr: stdout is for the answer of the benchmark."""
    facts = "  ".join(f"{key} {value}" for key, value in answer.items() if key != "value")
    print(f"{name:<16} {figure(answer['value']):>12}  {facts}", file=sys.stderr, flush=True)

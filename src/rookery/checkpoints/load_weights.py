"""Loads weights from a run folder: from its best, last or a numbered checkpoint."""

from pathlib import Path

from rookery import plugins
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import VerifiedCheckpoint
from rookery.checkpoints.saver import BEST, CHECKPOINTS
from rookery.config.load import RUN_FILE, load_run
from rookery.config.schema import Config
from rookery.errors import CheckpointError, ConfigError
from rookery.terminal.output import notice
from rookery.types import Weights


def read_weights(run_dir: Path, which: str, tries: int = 3) -> Weights:
    """Returns the weights of the checkpoint `which`: `best`, `last` or a number of env steps.

    If a run in progress deletes that checkpoint while it is read, chooses and reads again.
    """
    found = pick_checkpoint(run_dir, which)
    try:
        return Weights(int(found.manifest["version"]), found.weights())
    except CheckpointError:
        if tries == 1:
            raise
        return read_weights(run_dir, which, tries - 1)


def read_own_weights(run_dir: Path, which: str) -> Weights:
    """Returns the weights of a checkpoint of a run that Rookery's own algorithms trained.

    Raises ConfigError for a run of a backend, such as Stable-Baselines3, whose networks differ.
    """
    if (run_dir / RUN_FILE).is_file():
        refuse_foreign(load_run(run_dir), run_dir)
    return read_weights(run_dir, which)


def refuse_foreign(config: Config, run_dir: Path) -> None:
    """Raises ConfigError if a backend, another library such as Stable-Baselines3, trained the run.

    The message says how to open the model with that library.
    """
    row = plugins.backends().get(config.backend)
    if row is not None:
        raise ConfigError(plugins.load(row.backend).how_to_open(config, run_dir))


def pick_checkpoint(run_dir: Path, which: str) -> VerifiedCheckpoint:
    """Returns the checkpoint that `which` names: `best`, `last`, or a number of env steps.

    `best` means `last` if no evaluation has finished yet. Raises ConfigError if there is no such
    run or number, and CheckpointError if the checkpoint is missing or damaged.
    """
    if not (run_dir / CHECKPOINTS).is_dir():
        load_run(run_dir)  # refuses a folder of no run
    if which == "best":
        best = checkpoint.newest(run_dir / BEST, resumable=False)
        if best.found is None and best.broken:  # a live run may have replaced it
            best = checkpoint.newest(run_dir / BEST, resumable=False)
        for reason in best.broken:
            notice(f"best/{reason}")
        if best.found is not None:
            return best.found
    if which in ("best", "last"):
        last = checkpoint.newest(run_dir / CHECKPOINTS, resumable=False)
        if last.found is None:
            raise CheckpointError(
                f"{run_dir} has no checkpoint that verifies: "
                + ("; ".join(last.broken) or "none was written yet")
            )
        for reason in last.broken:
            notice(reason)
        return last.found
    return _numbered(run_dir, which)


def _numbered(run_dir: Path, which: str) -> VerifiedCheckpoint:
    have = [f for part in (CHECKPOINTS, BEST) for f in checkpoint.folders(run_dir / part)]
    numbered = {int(f.name.split("-")[1]): f for f in reversed(have)}
    if not which.isdigit() or int(which) not in numbered:
        raise ConfigError(
            f"{run_dir} has no checkpoint {which!r}; it has best, last and "
            + (", ".join(map(str, sorted(numbered))) or "no numbered ones")
        )
    return checkpoint.verify(numbered[int(which)])

"""Launches a training run: run folder, lock, components, signal handling and result."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rookery import plugins
from rookery.actors.device_group import batched_env_of
from rookery.checkpoints import checkpoint, run_folder
from rookery.checkpoints.checkpoint import VerifiedCheckpoint
from rookery.checkpoints.load_weights import read_weights, refuse_foreign
from rookery.checkpoints.saver import CHECKPOINTS, Saver
from rookery.checkpoints.stale_files import remove_unfinished
from rookery.config.load import differences, load_run
from rookery.config.schema import Config, Mode, refuse_a_league_of_one
from rookery.engines.pickling import pickled
from rookery.envs.lookup import name_of
from rookery.envs.make import Factory, check
from rookery.envs.turn_based.opponents import opponents_builder
from rookery.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    LostError,
    RookeryError,
    StalledError,
)
from rookery.evaluation.backend import Callback, RunRequest, RunSession, backend_of
from rookery.evaluation.evaluation_client import EvaluationClient
from rookery.evaluation.evaluation_process import EvaluationSetup
from rookery.event import Event, Stopped, Warned
from rookery.learner.data_parallel.follower import check_learners
from rookery.learner.learner import Learner
from rookery.networks.device import pick_device
from rookery.report.metrics.meter import Meter
from rookery.report.trackers.rewind import cut
from rookery.report.trackers.sinks import check as check_sinks
from rookery.runtime.hang_watch import watched_calls
from rookery.runtime.signals import EXIT_CODES, Interrupts
from rookery.terminal.output import notice
from rookery.training.build import Parts, build_parts
from rookery.training.resources import (
    crowding,
    estimate,
    refuse_descriptors,
    refuse_devices,
    refuse_what_cannot_fit,
)
from rookery.training.run import TrainingRun
from rookery.training.run_state import put_back
from rookery.types import Array, EnvSpec, Json

ERRORS: dict[int, type[RookeryError]] = {2: ConfigError, 3: LostError}  # by exit code

RunAnswer: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]  # as result.json has it


class RunOutcome(NamedTuple):
    """Result of a run: `answer`, which `--json` prints (steps, score, ...), and the exit code."""

    answer: RunAnswer
    exit_code: int


def launch(
    config: Config,
    *,
    resume: Path | None = None,
    exact: bool = False,
    init_from: str | None = None,
    quiet: bool = False,
) -> RunOutcome:
    """Runs a training to its end and returns its result.

    If the run to resume is already finished, returns its stored result. With `quiet` there is no
    console, and warnings go to standard error.
    """
    if config.cluster.learner_resources:
        return _away(config, resume=resume, exact=exact, init_from=init_from)
    request = RunRequest(resume=resume, exact=exact, init_from=init_from, console=not quiet)
    if (done := finished(config, request)) is not None:
        return done
    with session(config, request) as run:
        answer: RunAnswer = {}
        for event in run.events():
            if isinstance(event, Warned) and quiet:
                notice(f"warning ({event.kind}): {event.message.strip().splitlines()[-1]}")
            if isinstance(event, Stopped):
                answer = conclude(run, event)
    return RunOutcome(answer, run.interrupts.exit_code)  # also where it came at the very end


def _away(config: Config, *, resume: Path | None, exact: bool, init_from: str | None) -> RunOutcome:
    """Runs the training on another cluster host, which has `cluster.learner_resources`."""
    from rookery.cluster.remote_run import RunOptions, send_away

    ended = send_away(
        config, RunOptions(resume, exact, init_from), "rookery.training.launch:launch"
    )
    if ended.error is not None and not ended.answer:
        raise ERRORS.get(ended.exit_code, LostError)(ended.error)
    return RunOutcome(dict(ended.answer), ended.exit_code)


def conclude(run: RunSession, event: Stopped) -> RunAnswer:
    """Returns the result of a run; writes it to the run folder unless the run was interrupted."""
    answer = {
        "run_dir": str(run.run_dir),
        "env_steps": event.counters.env_steps,
        "learner_steps": event.counters.learner_steps,
        "episodes": event.counters.episodes,
        "wall_s": round(event.wall_s, 3),
        "train_s": round(event.train_s, 3),
        "best_score": event.best_score,
        "solved": event.solved,
        "reason": str(event.reason),
        "weights_sha256": event.weights_sha256,
        "faults": dict(event.faults),
    }
    if event.reason not in EXIT_CODES:
        run_folder.write_result(run.run_dir, answer)
    return answer


def finished(config: Config, request: RunRequest) -> RunOutcome | None:
    """Returns the stored result of the run to resume if it is finished, otherwise None.

    Finished means that it has reached the target score, `run.env_steps` or `run.episodes`, as the
    settings are now. Raises ConfigError if another library, such as Stable-Baselines3, trained the
    run.
    """
    if request.resume is None:
        return None
    refuse_foreign(config, request.resume)
    if (answer := run_folder.result_of(request.resume)) is None:
        return None
    target = config.eval.target
    solved = answer["solved"] and target is not None and answer["best_score"] >= target
    played = answer["env_steps"] >= config.run.env_steps
    ended = config.run.episodes is not None and answer["episodes"] >= config.run.episodes
    if not (solved or played or ended):
        return None
    notice(
        f"{request.resume} is over ({answer['reason']}); to train further from its weights start a "
        f"new run with --init-from {request.resume}, or change the limit that ended it"
    )
    return RunOutcome(answer, 0)


@contextlib.contextmanager
def session(config: Config, request: RunRequest) -> Iterator[RunSession]:
    """Context manager that builds a run, and closes all its processes and files on exit."""
    if (backend := backend_of(config)) is not None:
        with backend.session(config, request) as driven:
            yield driven
        return
    _refuse_what_cannot_start(config)
    if request.factory is not None:
        pickled(request.factory, f"env={name_of(request.factory)}")  # every process makes its own
        config = replace(config, env=replace(config.env, id=name_of(request.factory)))
    notice(f"starting {config.name}, seed {config.run.seed}")
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        check_environment(config, request.factory)
        run_dir = claim(config, request, stack)
        found = _checkpoint(run_dir, request) if request.resume else None
        weights = _initial_weights(request.init_from)
        saver = Saver(run_dir, keep=config.checkpoint.keep)
        stack.callback(saver.close)
        resumed_at = _cut_back(run_dir, found) if request.resume else None
        evaluation_client = open_evaluation_client(config, request, run_dir, stack, resumed_at)
        about: dict[str, Json] = {
            "scenario": config.name,
            "seed": config.run.seed,
            "device": str(pick_device(config.learner.device)),
        }

        saved = found.state()["actors"] if found else {}
        parts = build_parts(
            config,
            factory=request.factory,
            run_dir=run_dir,
            weights=weights,
            incarnations=saved.get("incarnations", ()),
            progress=saved.get("progress", ()),
            approve=lambda spec, learner: _approve(config, run_dir, about, spec, learner),
            saver=saver,
        )
        stack.callback(_close, parts)
        run = TrainingRun(
            parts,
            run_dir=run_dir,
            evaluation_client=evaluation_client,
            saver=saver,
            meter=Meter(config.report, time.monotonic),
            interrupts=interrupts,
            callbacks=callbacks_of(config, request),
            resumed=found is not None,
            about=about,
        )
        if request.resume:
            _take_up(run, found)
        interrupts.begin()
        yield run


def _refuse_what_cannot_start(config: Config) -> None:
    """Raises ConfigError for settings that this machine cannot run, before anything is built."""
    if config.cluster.learner_resources:
        raise ConfigError(
            "cluster.learner_resources send a whole run to another host, which `rookery train` "
            "alone can do; from Python start the script on that host, and leave them out"
        )
    opponents_builder(config)  # where no plugin offers opponents, they are refused
    refuse_a_league_of_one(config)
    pick_device(config.learner.device)
    refuse_descriptors(config)
    refuse_devices(config)
    check_learners(config)
    if config.run.mode is Mode.DEVICE:
        batched_env_of(config).refuse(config)
    check_sinks(config)


def _approve(
    config: Config, run_dir: Path, about: dict[str, Json], spec: EnvSpec, learner: Learner
) -> None:
    """Prints the resources that a run needs; raises ConfigError if they are not available."""
    need = estimate(config, spec, learner)
    refuse_what_cannot_fit(need, config, run_dir)
    about["estimate"] = str(need)
    notice(str(need))
    if crowded := crowding(config, "--actors"):
        notice(crowded)
    if (place := config.learner.rendezvous) is not None:
        last = config.learner.replicas - 1
        notice(f"waiting at {place} for other learners, started with RANK=1 to RANK={last}")
    if config.run.mode is Mode.DEVICE and learner.device.type == "cpu":
        notice(f"run.mode device without a GPU is slow; {batched_env_of(config).without_gpu}")


def _take_up(run: TrainingRun, found: VerifiedCheckpoint | None) -> None:
    """Restores a resumed run from the checkpoint `found`, and writes the settings to its folder.

    If `found` is None, the run starts again from scratch.
    """
    if found is None:
        run.saver.adopt([])
    else:
        rest = put_back(run.parts, run.saver, found)
        run.restore(rest.run)
        run.evaluation_client.rewrite(rest.unwritten)
        for snapshot in rest.pending:
            run.evaluation_client.submit(snapshot)
    # not before the settings were known to fit the checkpoint
    run_folder.write_config(run.run_dir, run.config)


def open_evaluation_client(
    config: Config,
    request: RunRequest,
    run_dir: Path,
    stack: contextlib.ExitStack,
    resumed_at: int | None = None,
) -> EvaluationClient:
    """Starts the evaluation process, which also writes the logs; leaving `stack` closes it."""
    console, factory = request.console, request.factory
    evaluation_client = EvaluationClient(
        EvaluationSetup(config, str(run_dir), factory, resumed_at, console, first_try=True)
    )
    stack.callback(evaluation_client.close)
    return evaluation_client


def check_environment(config: Config, factory: Factory | None) -> None:
    """With `env.check`, tests the environment by stepping a copy of it, and prints warnings.

    Raises StalledError if one call of it takes longer than `actor.env_step_timeout_s`.
    """
    if config.env.check:
        with watched_calls(config.env.id, config.actor.env_step_timeout_s) as calls:
            warnings = check(config.env, factory, calls)
        for warning in warnings:
            notice(f"environment check: {warning}")


def claim(config: Config, request: RunRequest, stack: contextlib.ExitStack) -> Path:
    """Creates the run folder, or opens that of the run to resume; locks and returns it.

    Raises ConfigError if another process uses the folder, or a new run's folder already has a run.
    """
    run_dir = request.resume or run_folder.make(config)
    stack.enter_context(run_folder.Lock(run_dir))
    remove_unfinished(run_dir)
    if request.resume is None:
        run_folder.describe(run_dir, config)
        stack.push(_forget(run_dir))
        return run_dir
    for change in differences(load_run(run_dir), config):
        notice(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    return run_dir


def _forget(run_dir: Path) -> Callable[[type[BaseException] | None, object, object], None]:
    """Returns an `ExitStack` callback that makes the folder of a refused run usable again.

    If the run ends with ConfigError before its first checkpoint, the callback deletes its settings
    files, so that a run with other settings can start in the same folder.
    """

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        began = (run_dir / CHECKPOINTS).exists()
        if kind is not None and issubclass(kind, ConfigError) and not began:
            run_folder.forget(run_dir)

    return leave


def _close(parts: Parts) -> None:
    try:
        parts.close()
    except (EnvError, StalledError) as error:  # the run is over: its result is valid
        notice(f"closing the environments failed: {error}")


def _checkpoint(run_dir: Path, request: RunRequest) -> VerifiedCheckpoint | None:
    found, broken, unfit = checkpoint.newest(run_dir / CHECKPOINTS, exact=request.exact)
    for reason in (*broken, *unfit):
        notice(reason)
    if found is None and broken:
        raise CheckpointError(
            f"no checkpoint of {run_dir} that this run could resume from is intact; restore one "
            f"from a copy, or start a new run with --init-from {run_dir} or from its seed"
        )
    if found is None:
        notice(f"{run_dir} has no checkpoint to resume from; starting again from its seed")
    elif not found.manifest["exact"]:
        notice(
            f"resuming from {found.folder.name}, which is not exact: saved at an interrupt that "
            "truncated episodes, or without replay; --exact resumes from an exact one"
        )
    else:
        notice(f"resuming from {found.folder.name}")
    return found


def _cut_back(run_dir: Path, found: VerifiedCheckpoint | None) -> int:
    """Truncates the metrics files to the checkpoint's env step, so that no step is logged twice.

    Also deletes the stored result. Returns the env step, 0 if there is no checkpoint.
    """
    mark = found.env_steps if found else -1
    waiting = found.state()["pending"] if found else []
    cut(run_dir, mark, unjudged=waiting[0]["counters"]["env_steps"] if waiting else None)
    (run_dir / run_folder.RESULT).unlink(missing_ok=True)
    return max(0, mark)


def _initial_weights(run: str | None) -> dict[str, Array] | None:
    return None if run is None else read_weights(Path(run), "best").arrays


def callbacks_of(config: Config, request: RunRequest) -> list[Callback]:
    """Returns the callbacks of `run.callbacks`, then those passed from Python (`RunRequest`)."""
    return [*map(_callback, config.run.callbacks), *request.callbacks]


def _callback(name: str) -> Callback:
    try:
        return plugins.load(name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"run.callbacks {name!r} cannot be found: {error}; it must be "
            "module:function, importable from here"
        ) from error


__all__ = [
    "Event",
    "RunOutcome",
    "RunRequest",
    "conclude",
    "finished",
    "launch",
    "session",
]

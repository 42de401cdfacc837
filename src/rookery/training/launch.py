"""Launches a training run: run folder, lock, components, signal handling and result."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from rookery import plugins
from rookery.actors.actor_group import ActorGroupState
from rookery.actors.device_group import batched_env_of
from rookery.algorithms import Algorithm
from rookery.checkpoints import checkpoint, run_folder
from rookery.checkpoints.checkpoint import CheckpointSearch, VerifiedCheckpoint
from rookery.checkpoints.load_weights import read_own_weights
from rookery.checkpoints.saver import CHECKPOINTS, Saver
from rookery.config.fixed_settings import SavedPart, fixed_changes
from rookery.config.load import differences, load_run
from rookery.config.schema import Config, Mode, refuse_a_league_of_one
from rookery.engines.pickling import pickled
from rookery.envs.lookup import name_of
from rookery.envs.make import Factory, check
from rookery.envs.turn_based.opponents import opponents_builder
from rookery.errors import CheckpointError, ConfigError, EnvError, LostError, StalledError
from rookery.evaluation.backend import Callback, RunRequest, RunSession, backend_of
from rookery.evaluation.evaluation_client import EvaluationClient
from rookery.evaluation.evaluation_process import EvaluationSetup
from rookery.event import Reason, Stopped, Warned
from rookery.learner.data_parallel.follower import check_learners
from rookery.networks.device import pick_device
from rookery.report.metrics.meter import Meter
from rookery.report.trackers import jsonl
from rookery.report.trackers.rewind import cut
from rookery.report.trackers.sinks import check as check_sinks
from rookery.runtime.signals import EXIT_CODES, Interrupts
from rookery.runtime.watchdog import watched_calls
from rookery.terminal.output import notice
from rookery.training import resources
from rookery.training.build import NEW_ACTORS, Parts, build_parts
from rookery.training.run import RunContext, SavedRun, TrainingRun
from rookery.training.run_state import Rest, put_back
from rookery.types import EnvSpec, Json

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
    request = RunRequest(resume=resume, exact=exact, init_from=init_from, console=not quiet)
    if config.cluster.learner_resources:
        return _away(config, request)
    if (done := finished(config, request)) is not None:
        return done
    with session(config, request) as run:
        answer: RunAnswer = {}
        for event in run.events():
            if isinstance(event, Warned) and quiet:
                notice(f"warning ({event.kind}): {event.message.strip().splitlines()[-1]}")
            if isinstance(event, Stopped):
                answer = conclude(run.run_dir, event)
    return RunOutcome(answer, run.interrupts.exit_code)  # also where it came at the very end


def _away(config: Config, request: RunRequest) -> RunOutcome:
    """Runs the training on another cluster host, which has `cluster.learner_resources`."""
    from rookery.cluster.remote_run import send_away

    answer, code, error = send_away(config, request, "rookery.training.launch:launch")
    if not answer and code == EXIT_CODES[Reason.INTERRUPTED]:
        raise KeyboardInterrupt  # as on this host: a signal came before there was a run to stop
    if not answer and code == EXIT_CODES[Reason.TERMINATED]:
        raise SystemExit(code)
    if not answer and error is not None:
        raise (ConfigError if code == ConfigError.exit_code else LostError)(error)
    return RunOutcome(dict(answer), code)


def conclude(run_dir: Path, event: Stopped) -> RunAnswer:
    """Returns the result of a run; writes it to the run folder unless the run was interrupted."""
    answer = {
        "run_dir": str(run_dir),
        **asdict(event.counters),
        "wall_s": round(event.wall_s, 3),
        "train_s": round(event.train_s, 3),
        "best_score": event.best_score,
        "solved": event.solved,
        "reason": str(event.reason),
        "weights_sha256": event.weights_sha256,
        "faults": dict(event.faults),
    }
    if event.reason not in EXIT_CODES:
        run_folder.write_result(run_dir, answer)
    return answer


def finished(config: Config, request: RunRequest) -> RunOutcome | None:
    """Returns the stored result of the run to resume if it is finished, otherwise None.

    Finished means that it has reached the target score, `run.env_steps` or `run.episodes`, as the
    settings are now.
    """
    if request.resume is None:
        return None
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
    with started(config, request, OwnTrainer) as run:
        yield run


class OpenFolder(NamedTuple):
    """The locked folder of a run that starts, its checkpoint if it is resumed, and its saver."""

    config: Config  # with the name of an environment that was given from Python
    run_dir: Path
    found: VerifiedCheckpoint | None
    saver: Saver
    about: dict[str, Json]  # what `Started` tells of the run


class Trainer(Protocol):
    """Interface of what a run trains with: Rookery's own components, or those of a backend."""

    def restore(self, found: VerifiedCheckpoint) -> Rest:
        """Restores the state of a checkpoint; returns that of the run itself. Writes no file."""

    def run(self, context: RunContext, *, resumed: bool) -> SavedRun:
        """Returns the run, which has not begun."""


Builder: TypeAlias = Callable[[OpenFolder, RunRequest, contextlib.ExitStack], Trainer]


@contextlib.contextmanager
def started(config: Config, request: RunRequest, build: Builder) -> Iterator[SavedRun]:
    """Context manager that opens a run's folder, builds the run, and restores it if it is resumed.

    `build` makes what the run trains with; leaving its `ExitStack` closes that.
    """
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        opened = _open_folder(config, request, interrupts, stack)
        config, run_dir, found, _, about = opened
        reports = stack.enter_context(contextlib.ExitStack())  # closed after the parts
        client = None
        if request.resume is None:  # starts while the parts are built
            client = open_evaluation_client(config, request, run_dir, reports)
        trainer = build(opened, request, stack)
        rest = None if found is None else trainer.restore(found)
        if client is None:  # the checkpoint fits: from here on the folder may change
            resumed_at = _cut_back(run_dir, found)
            client = open_evaluation_client(config, request, run_dir, reports, resumed_at)
        context = context_of(config, request, run_dir, client, interrupts, about)
        run = trainer.run(context, resumed=found is not None)
        if rest is not None:
            run.restore(rest)
        elif request.resume is not None:  # without a checkpoint, it starts again from its seed
            opened.saver.adopt([])
        if request.resume is not None:
            run_folder.write_config(run_dir, run.config)
        interrupts.begin()
        yield run


def _open_folder(
    config: Config, request: RunRequest, interrupts: Interrupts, stack: contextlib.ExitStack
) -> OpenFolder:
    """Opens the folder of a new run, or of the run to resume, after a check of the environment."""
    notice(f"starting {config.name}, seed {config.run.seed}")
    found = None if request.resume is None else reopen(config, request.resume, request, stack)
    if request.factory is not None:
        name = name_of(request.factory)
        pickled(request.factory, f"env={name}")  # each process makes its own
        config = replace(config, env=replace(config.env, id=name))
    check_environment(config, request.factory)
    run_dir = request.resume or stack.enter_context(run_folder.claimed(config, interrupts))
    saver = stack.enter_context(closing(Saver(run_dir, keep=config.checkpoint.keep)))
    interrupts.kept = "no checkpoint was written yet"
    if found is not None:
        saver.newest, interrupts.kept = found.folder, f"{found.folder.name} is intact"
    return OpenFolder(config, run_dir, found, saver, about_of(config))


class OwnTrainer:
    """The components of a run with Rookery's own training loop."""

    def __init__(self, opened: OpenFolder, request: RunRequest, stack: contextlib.ExitStack):
        config, run_dir, found, saver, about = opened
        source = request.init_from
        self.saver = saver
        self.parts = build_parts(
            config,
            factory=request.factory,
            run_dir=run_dir,
            weights=None if source is None else read_own_weights(Path(source), "best").arrays,
            saved=NEW_ACTORS
            if found is None
            else ActorGroupState.from_checkpoint(found.state()["actors"], {}),
            approve=partial(_approve, config, run_dir, about),
            saver=saver,
        )
        stack.callback(_close, self.parts)

    def restore(self, found: VerifiedCheckpoint) -> Rest:
        return put_back(self.parts, found)

    def run(self, context: RunContext, *, resumed: bool) -> TrainingRun:
        return TrainingRun(self.parts, context, saver=self.saver, resumed=resumed)


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
    resources.refuse_descriptors(config)
    resources.refuse_devices(config)
    check_learners(config)
    if config.run.mode is Mode.DEVICE:
        batched_env_of(config).refuse(config)
    check_sinks(config)


def _approve(
    config: Config, run_dir: Path, about: dict[str, Json], spec: EnvSpec, algorithm: Algorithm
) -> None:
    """Prints the resources that a run needs; raises ConfigError if they are not available."""
    need = resources.estimate(config, spec, algorithm)
    resources.refuse_what_cannot_fit(need, config, run_dir)
    about["estimate"] = str(need)
    notice(str(need))
    if crowded := resources.crowding(config, "--actors"):
        notice(crowded)
    if (place := config.learner.rendezvous) is not None:
        last = config.learner.replicas - 1
        notice(f"waiting at {place} for other learners, started with RANK=1 to RANK={last}")
    if config.run.mode is Mode.DEVICE and about["device"] == "cpu":
        notice(f"run.mode device without a GPU is slow; {batched_env_of(config).without_gpu}")


def open_evaluation_client(
    config: Config,
    request: RunRequest,
    run_dir: Path,
    stack: contextlib.ExitStack,
    resumed_at: int | None = None,
) -> EvaluationClient:
    """Starts the evaluation process, which also writes the logs; leaving `stack` closes it."""
    console, factory = request.console, request.factory
    setup = EvaluationSetup(config, str(run_dir), factory, resumed_at, console)
    return stack.enter_context(closing(EvaluationClient(setup)))


def check_environment(config: Config, factory: Factory | None) -> None:
    """With `env.check`, tests the environment by stepping a copy of it, and prints warnings.

    Raises StalledError if one call of it takes longer than `actor.env_step_timeout_s`.
    """
    if config.env.check:
        with watched_calls(config.env.id, config.actor.env_step_timeout_s) as calls:
            warnings = check(config.env, factory, calls)
        for warning in warnings:
            notice(f"environment check: {warning}")


def reopen(
    config: Config, run_dir: Path, request: RunRequest, stack: contextlib.ExitStack
) -> VerifiedCheckpoint | None:
    """Locks the folder of the run to resume; returns its checkpoint, None if it never had one.

    Raises ConfigError if another process uses the folder, or the settings do not fit the
    checkpoint, and CheckpointError if its checkpoints are damaged or were removed. Nothing in the
    folder has changed then, except the name of the process in the lock.
    """
    stack.enter_context(run_folder.locked(run_dir))
    before = load_run(run_dir)
    search = checkpoint.newest(run_dir / CHECKPOINTS, exact=request.exact)
    if search.found is not None:
        _refuse_changes(before, config, run_dir, search.found)
    for change in differences(before, config):
        notice(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    return _chosen(run_dir, search)


def _refuse_changes(
    before: Config, config: Config, run_dir: Path, found: VerifiedCheckpoint
) -> None:
    """Raises ConfigError if settings have changed that the checkpoint depends on."""
    saved = {SavedPart.RUN, SavedPart.NETWORKS}
    if found.manifest["about"]["replay"]:
        saved.add(SavedPart.REPLAY)
    if "actors" in found.state()["actors"]:
        saved.add(SavedPart.EPISODES)
    if not (refused := fixed_changes(before, config, saved)):
        return
    changes = ", ".join(
        f"{change.key} {change.before!r} -> {change.after!r} ({why})" for change, _, why in refused
    )
    same = any(part is SavedPart.NETWORKS for _, part, _ in refused)
    raise ConfigError(
        f"a resumed run keeps the settings that its checkpoint depends on, got {changes}; leave "
        f"the change out, or start a new run: with --init-from {run_dir} from these weights"
        + (", if its networks are the same" if same else "")
    )


def _close(parts: Parts) -> None:
    try:
        parts.close()
    except (EnvError, StalledError) as error:  # the run is over: its result is valid
        notice(f"closing the environments failed: {error}")


def _chosen(run_dir: Path, search: CheckpointSearch) -> VerifiedCheckpoint | None:
    """Returns the checkpoint that a search found, and prints it and why others were skipped."""
    found, broken, unfit = search
    for reason in (*broken, *unfit):
        notice(reason)
    if found is None and broken:
        raise CheckpointError(
            f"no checkpoint of {run_dir} that this run could resume from is intact; restore one "
            f"from a copy, start a new run with --init-from {run_dir} or from its seed, or leave "
            "--exact out if it was given and only replay rows are damaged"
        )
    if found is None:
        _refuse_to_begin_again(run_dir, unfit)
        notice(f"{run_dir} has no checkpoint to resume from; starting again from its seed")
    elif found.damaged:
        notice(
            f"warning: resuming from {found.folder.name} without {found.lost_rows} replay rows, so "
            f"the run does not continue exactly: {'; '.join(found.damaged.values())}"
        )
    elif not found.manifest["exact"]:
        notice(
            f"resuming from {found.folder.name}, which is not exact: saved at an interrupt that "
            "truncated episodes, without replay, or by a backend; --exact resumes from an exact one"
        )
    else:
        notice(f"resuming from {found.folder.name}")
    return found


def _refuse_to_begin_again(run_dir: Path, unfit: Sequence[str]) -> None:
    """Raises CheckpointError if the run would overwrite what it has: its result or its record.

    A run that was stopped before its first checkpoint has neither, and may begin again. So may one
    whose checkpoints are `unfit` because they are not exact: a run from its seed is exact.
    """
    saved = any(entry["event"] == "saved" for entry in jsonl.read(run_dir))
    if run_folder.result_of(run_dir) is None and (unfit or not saved):
        return
    why = "only the weights of its end are left" if unfit else "its checkpoints were removed"
    raise CheckpointError(
        f"{run_dir} was saved, but has no checkpoint to resume from: {why}; restore checkpoints "
        f"from a copy, start a new run with --init-from {run_dir}, or begin again in another "
        "--run-dir"
    )


def _cut_back(run_dir: Path, found: VerifiedCheckpoint | None) -> int:
    """Truncates the metrics files to the checkpoint's env step, so that no step is logged twice.

    Also deletes the stored result and half-written files. Returns the env step, 0 if there is no
    checkpoint.
    """
    run_folder.remove_unfinished(run_dir)
    mark = found.env_steps if found else -1
    waiting = found.state()["pending"] if found else []
    cut(run_dir, mark, unevaluated=waiting[0]["counters"]["env_steps"] if waiting else None)
    (run_dir / run_folder.RESULT).unlink(missing_ok=True)
    return max(0, mark)


def about_of(config: Config) -> dict[str, Json]:
    """Returns what the event `Started` tells of every run."""
    device = str(pick_device(config.learner.device))
    return {"scenario": config.name, "seed": config.run.seed, "device": device}


def context_of(
    config: Config,
    request: RunRequest,
    run_dir: Path,
    client: EvaluationClient,
    interrupts: Interrupts,
    about: dict[str, Json],
) -> RunContext:
    """Returns what a run has besides its training.

    Its callbacks are those of `run.callbacks`, then those passed from Python (`RunRequest`).
    """
    callbacks = [*map(_callback, config.run.callbacks), *request.callbacks]
    meter = Meter(config.report, time.monotonic)
    return RunContext(run_dir, client, meter, interrupts, callbacks, about)


def _callback(name: str) -> Callback:
    try:
        return plugins.load(name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"run.callbacks {name!r} cannot be found: {error}; it must be "
            "module:function, importable from here"
        ) from error

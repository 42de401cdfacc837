"""From a config to a finished run: folder, lock, roles, signals, and the answer at the end."""

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.config.load import RUN_FILE, differences, load_run
from rookery.config.schema import Backend, Config, Engine, Mode
from rookery.envs.entry import name_of
from rookery.envs.make import check
from rookery.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    LostError,
    RookeryError,
    StalledError,
)
from rookery.event import Event, Stopped
from rookery.learner import Learner, pick_device
from rookery.loops.company import refuse_a_league_of_one
from rookery.loops.desk import Setup
from rookery.loops.driver import Callback, Driver
from rookery.loops.estimate import (
    crowding,
    estimate,
    refuse_descriptors,
    refuse_devices,
    refuse_what_cannot_fit,
)
from rookery.loops.herd import refuse_herds
from rookery.loops.hosted import refuse_to_open
from rookery.loops.manager import Manager
from rookery.loops.replica import refuse_learners
from rookery.loops.restore import put_back
from rookery.loops.wiring import Factory, Parts, wire
from rookery.manage import checkpoint, folder, machine
from rookery.manage.checkpoint import Found
from rookery.manage.interrupts import EXIT_CODES, Interrupts
from rookery.manage.litter import tidy
from rookery.manage.saver import BEST, CHECKPOINTS, Saver
from rookery.report.cut import cut
from rookery.report.meter import Meter
from rookery.report.sinks import check as check_sinks
from rookery.types import Array, EnvSpec, Weights

if TYPE_CHECKING:
    from rookery.loops.hosted import Hosted

ERRORS: dict[int, type[RookeryError]] = {2: ConfigError, 3: LostError}  # by exit code


class Outcome(NamedTuple):
    """How a run ended: the answer for programs, and the exit code."""

    answer: dict[str, Any]
    exit_code: int


class Request(NamedTuple):
    """What is asked for, beyond the config."""

    resume: Path | None = None
    exact: bool = False
    init_from: str | None = None
    factory: Factory | None = None
    callbacks: Sequence[Callback] = ()
    console: bool = False


def launch(
    config: Config,
    *,
    resume: Path | None = None,
    exact: bool = False,
    init_from: str | None = None,
    quiet: bool = False,
) -> Outcome:
    """Runs to the end and returns the answer. A run that is over already answers at once."""
    if config.cluster.learner_resources:
        return _away(config, resume=resume, exact=exact, init_from=init_from)
    request = Request(resume=resume, exact=exact, init_from=init_from, console=not quiet)
    if (done := finished(config, request)) is not None:
        return done
    with session(config, request) as driver:
        answer: dict[str, Any] = {}
        for event in driver.events():
            if isinstance(event, Stopped):
                answer = conclude(driver, event)
    return Outcome(answer, driver.interrupts.exit_code)  # also where it came at the very end


def _away(config: Config, *, resume: Path | None, exact: bool, init_from: str | None) -> Outcome:
    """Has the run done on the host that its learner needs."""
    from rookery.loops.errand import Asked, send_away

    ended = send_away(config, Asked(resume, exact, init_from))
    if ended.error is not None and not ended.answer:
        raise ERRORS.get(ended.exit_code, LostError)(ended.error)
    return Outcome(ended.answer, ended.exit_code)


def conclude(driver: "Driver | Hosted", event: Stopped) -> dict[str, Any]:
    """Writes down how a run ended, unless it was interrupted, and returns the answer."""
    answer = {
        "run_dir": str(driver.run_dir),
        "env_steps": event.counters.env_steps,
        "learner_steps": event.counters.learner_steps,
        "episodes": event.counters.episodes,
        "wall_s": round(event.wall_s, 3),
        "train_s": round(event.train_s, 3),
        "best_score": event.best_score,
        "solved": event.solved,
        "reason": str(event.reason),
        "weights_sha256": event.weights_sha256,
    }
    if event.reason not in EXIT_CODES:
        folder.write_result(driver.run_dir, answer)
    return answer


def finished(config: Config, request: Request) -> Outcome | None:
    """Returns the answer of a run that is asked to go on but has nothing left to do."""
    if request.resume is None:
        return None
    refuse_to_open(config, request.resume)
    if (answer := folder.result_of(request.resume)) is None:
        return None
    target = config.eval.target
    solved = answer["solved"] and target is not None and answer["best_score"] >= target
    played = answer["env_steps"] >= config.run.env_steps
    ended = config.run.episodes is not None and answer["episodes"] >= config.run.episodes
    if not (solved or played or ended):
        return None
    _say(
        f"{request.resume} is over ({answer['reason']}); to learn on from its weights begin a new "
        f"run with --init-from {request.resume}, or change the limit that ended it"
    )
    return Outcome(answer, 0)


@contextlib.contextmanager
def session(config: Config, request: Request) -> "Iterator[Driver | Hosted]":
    """Everything a run needs while it runs, and nothing left of it afterwards."""
    if config.backend is Backend.SB3:
        with _hosting(config, request) as hosted:
            yield hosted
        return
    _refuse_what_cannot_start(config)
    if request.factory is not None:
        config = replace(config, env=replace(config.env, id=name_of(request.factory)))
    _say(f"starting {config.name}, seed {config.run.seed}")
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        _check_environment(config, request.factory)
        run_dir = _claim(config, request, stack)
        found = _checkpoint(run_dir, request) if request.resume else None
        weights = _initial_weights(request.init_from)
        saver = Saver(run_dir, keep=config.checkpoint.keep)
        stack.callback(saver.close)
        resumed_at = _cut_back(run_dir, found) if request.resume else None
        manager = Manager(
            Setup(
                config, str(run_dir), request.factory, resumed_at, request.console, first_try=True
            )
        )
        stack.callback(manager.close)
        about: dict[str, Any] = {
            "scenario": config.name,
            "seed": config.run.seed,
            "device": str(pick_device(config.learner.device)),
        }

        crew = found.state()["crew"] if found else {}
        parts = wire(
            config,
            factory=request.factory,
            run_dir=run_dir,
            weights=weights,
            incarnations=crew.get("incarnations", ()),
            progress=crew.get("progress", ()),
            approve=lambda spec, learner: _approve(config, run_dir, about, spec, learner),
        )
        stack.callback(_close, parts)
        if config.engine is Engine.RAY:
            _remember(parts, saver)
        driver = Driver(
            parts,
            run_dir=run_dir,
            manager=manager,
            saver=saver,
            meter=Meter(config.report, time.monotonic),
            interrupts=interrupts,
            callbacks=[*map(_callback, config.run.callbacks), *request.callbacks],
            resumed=found is not None,
            about=about,
        )
        if request.resume:
            _take_up(driver, found)
        interrupts.begin()
        yield driver


def _refuse_what_cannot_start(config: Config) -> None:
    """Finds out, before anything is made, what this machine cannot do."""
    if config.cluster.learner_resources:
        raise ConfigError(
            "cluster.learner_resources send a whole run to another host, which `rookery train` "
            "alone can do; from Python start the script on that host, and leave them out"
        )
    refuse_a_league_of_one(config)
    pick_device(config.learner.device)
    refuse_descriptors(config)
    refuse_devices(config)
    refuse_learners(config)
    if config.run.mode is Mode.DEVICE:
        refuse_herds(config)
    check_sinks(config)


@contextlib.contextmanager
def _hosting(config: Config, request: Request) -> "Iterator[Hosted]":
    """The same for an algorithm of SB3's."""
    from rookery.loops import hosted

    machine.require_sb3()
    if request.resume is not None:
        hosted.refuse_to_open(config, request.resume)
    device = pick_device(config.learner.device)
    check_sinks(config)
    if request.factory is not None:
        config = replace(config, env=replace(config.env, id=name_of(request.factory)))
    _say(f"starting {config.name}, seed {config.run.seed}")
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        _check_environment(config, request.factory)
        run_dir = _claim(config, request, stack)
        setup = Setup(config, str(run_dir), request.factory, None, request.console, first_try=True)
        manager = Manager(setup)
        stack.callback(manager.close)
        learning = hosted.prepare(config, request.factory, device, run_dir, stack)
        interrupts.begin()
        yield hosted.Hosted(
            learning,
            run_dir=run_dir,
            manager=manager,
            meter=Meter(config.report, time.monotonic),
            interrupts=interrupts,
            callbacks=[*map(_callback, config.run.callbacks), *request.callbacks],
            about={
                "scenario": config.name,
                "seed": config.run.seed,
                "device": str(device),
                "backend": f"SB3 {config.sb3.algorithm}",
            },
        )


def _approve(
    config: Config, run_dir: Path, about: dict[str, Any], spec: EnvSpec, learner: Learner
) -> None:
    """Says what a run will take, or refuses what cannot fit."""
    need = estimate(config, spec, learner)
    refuse_what_cannot_fit(need, config, run_dir)
    about["estimate"] = str(need)
    _say(str(need))
    if crowded := crowding(config, "--actors"):
        _say(crowded)
    if (place := config.learner.rendezvous) is not None:
        last = config.learner.replicas - 1
        _say(f"waiting at {place} for other learners, started with RANK=1 to RANK={last}")
    if config.run.mode is Mode.DEVICE and learner.device.type == "cpu":
        _say(
            "run.mode device without a GPU is slow; pathfinding-cpu is a scenario for this machine"
        )


def _take_up(driver: Driver, found: Found | None) -> None:
    """Puts a run back to where its checkpoint was made, or to its very beginning."""
    if found is None:
        driver.saver.adopt([])
    else:
        rest = put_back(driver.parts, driver.saver, found)
        driver.restore(rest.driver)
        driver.manager.rewrite(rest.unwritten)
        for snapshot in rest.pending:
            driver.manager.submit(snapshot)
    # not before the settings were known to fit the checkpoint
    folder.write_config(driver.run_dir, driver.config)


def _check_environment(config: Config, factory: Factory | None) -> None:
    if config.env.check:
        for warning in check(config.env, factory):
            _say(f"environment check: {warning}")


def _claim(config: Config, request: Request, stack: contextlib.ExitStack) -> Path:
    """Makes or finds the run's folder, and keeps everybody else out of it."""
    run_dir = request.resume or folder.make(config)
    stack.enter_context(folder.Lock(run_dir))
    tidy(run_dir)
    if request.resume is None:
        folder.describe(run_dir, config)
        stack.push(_forget(run_dir))
        return run_dir
    for change in differences(load_run(run_dir), config):
        _say(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    return run_dir


def _forget(run_dir: Path) -> Callable[..., None]:
    """Makes a run undone that was refused before it began, for an exit stack."""

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        began = (run_dir / CHECKPOINTS).exists()
        if kind is not None and issubclass(kind, ConfigError) and not began:
            folder.forget(run_dir)

    return leave


def _remember(parts: Parts, saver: Saver) -> None:
    """Lets stations that take a lost one's place have what was saved of its shard.

    Rollouts are saved where they are learned from: of those, no shard is.
    """
    if parts.config.algo.on_policy:
        return
    from rookery.loops.archive import Archive
    from rookery.loops.fleet import Fleet

    assert isinstance(parts.crew, Fleet)
    parts.crew.recall = Archive(saver).recall


def _close(parts: Parts) -> None:
    try:
        parts.close()
    except (EnvError, StalledError) as error:  # the run is over: what it came to stands
        _say(f"closing the environments failed: {error}")


def _checkpoint(run_dir: Path, request: Request) -> Found | None:
    found, broken, unfit = checkpoint.newest(run_dir / CHECKPOINTS, exact=request.exact)
    for reason in (*broken, *unfit):
        _say(reason)
    if found is None and broken:
        raise CheckpointError(
            f"no checkpoint of {run_dir} that this run could go on from is whole; put one back "
            f"from a copy, or begin a new run with --init-from {run_dir} or from its seed"
        )
    if found is None:
        _say(f"{run_dir} has no checkpoint to go on from; beginning again from its seed")
    elif not found.manifest["exact"]:
        _say(
            f"going on from {found.folder.name}, which is not exact: made by an interrupt whose "
            "environments were cut, or without replay; --exact goes back to one that is"
        )
    else:
        _say(f"going on from {found.folder.name}")
    return found


def _cut_back(run_dir: Path, found: Found | None) -> int:
    """Takes the metrics back to the checkpoint, so that no step is written twice."""
    mark = found.env_steps if found else -1
    waiting = found.state()["pending"] if found else []
    cut(run_dir, mark, unjudged=waiting[0]["counters"]["env_steps"] if waiting else None)
    (run_dir / folder.RESULT).unlink(missing_ok=True)
    return max(0, mark)


def _initial_weights(run: str | None) -> dict[str, Array] | None:
    return None if run is None else read_weights(Path(run), "best").arrays


def read_weights(run_dir: Path, which: str, tries: int = 3) -> Weights:
    """Reads what acts. A live run may replace a checkpoint while it is read: then the next one."""
    if (run_dir / RUN_FILE).is_file():
        refuse_to_open(load_run(run_dir), run_dir)
    found = pick_checkpoint(run_dir, which)
    try:
        return Weights(int(found.manifest["version"]), found.weights())
    except CheckpointError:
        if tries == 1:
            raise
        return read_weights(run_dir, which, tries - 1)


def pick_checkpoint(run_dir: Path, which: str) -> Found:
    """Returns `best` (the last one where none was judged), `last`, or the one of env step N."""
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run folder {run_dir}; `ls runs` shows what is there")
    if which == "best":
        best = checkpoint.newest(run_dir / BEST, resumable=False)
        if best.found is None and best.broken:  # a live run may have put a better one in its place
            best = checkpoint.newest(run_dir / BEST, resumable=False)
        for reason in best.broken:
            _say(f"best/{reason}")
        if best.found is not None:
            return best.found
    if which in ("best", "last"):
        last = checkpoint.newest(run_dir / CHECKPOINTS, resumable=False)
        if last.found is None:
            raise CheckpointError(
                f"{run_dir} has no checkpoint that verifies: "
                + ("; ".join(last.broken) or "none was written yet")
            )
        return last.found
    return _numbered(run_dir, which)


def _numbered(run_dir: Path, which: str) -> Found:
    have = [f for part in (CHECKPOINTS, BEST) for f in checkpoint.folders(run_dir / part)]
    marks = {int(f.name.split("-")[1]): f for f in reversed(have)}
    if not which.isdigit() or int(which) not in marks:
        raise ConfigError(
            f"{run_dir} has no checkpoint {which!r}; it has best, last and "
            + (", ".join(map(str, sorted(marks))) or "no numbered ones")
        )
    return checkpoint.verify(marks[int(which)])


def _callback(name: str) -> Callback:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"run.callbacks {name!r} cannot be found: {error}; it must be "
            "module:function, importable from here"
        ) from error


def _say(message: str) -> None:
    sys.stderr.write(f"rookery: {message}\n")
    sys.stderr.flush()


__all__ = [
    "Event",
    "Outcome",
    "Request",
    "conclude",
    "finished",
    "launch",
    "pick_checkpoint",
    "read_weights",
    "session",
]

"""Train several runs in parallel that share their replay buffers.

Each run samples a part of its batches from the replay buffers of the other runs. The runs have the
same environment; their seeds, algorithms and settings may differ.
"""

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli import train
from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.report.console.runs_table import Board
    from rookery.sharing.launcher import Job, LaunchedRun, RunLauncher

    Planned = tuple[Job, Config]

EXAMPLES = """\
examples:
  rookery share --scenario sb3-sac --n-parallel 4
  rookery share --scenarios sb3-sac sb3-td3 --strategy weighted --cross-sample-ratio 0.3
  rookery share --scenario sb3-sac --gpus 0 1 0 1 --wandb
  rookery share --scenario sb3-sac --strategy local_only --extra-args --tag baseline_local
  rookery share --scenarios league league league-exploiter --cross-sample-ratio 0

Each run is a `rookery train` with its own folder; its output is in the folder's log.txt. The
arguments after --extra-args are passed to every run. Flags may be written with underscores.
"""
TIED = (sys.executable, "-m", "rookery.cli.tied_command")  # ends when this process does
POLL_S = 0.2  # seconds between two updates of the table
PER_RUN = {  # flags that --extra-args cannot pass to all runs, and what to use instead
    "--seed": "--base-seed",
    "--seeds": "--base-seed and --n-parallel",
    "--run-dir": "--run-dir in front of --extra-args",
    "--resume": "rookery train --resume, for each run",
    "--init-from": "rookery train --init-from, for each run",
    "--print-config": "rookery train --print-config",
    "--device": "--gpus",
    "--json": "--json in front of --extra-args",
}
SCENARIOS = (
    "scenarios (named training configurations, see `rookery list`) or YAML files to train in "
    "parallel (default: none; at least one is required)"
)
NAMED = """
--scenario SCENARIO  scenario to train, as SCENARIO (default: none)
--scenarios SCENARIO ...  scenarios to train, as SCENARIO (default: none)
"""
RUNS = """
--n-parallel N  number of runs of each scenario, with different seeds (default: 4 of one scenario, 1
  of each of several)
--base-seed SEED  seed S of the first run; the others have S + 1, S + 2, ... (default 42)
--gpus I ...  numbers of the GPUs for the runs' learners, assigned round-robin (default: the
  scenario's device)
"""
SHARING = """
--strategy WORD  sharing.strategy: replay buffers from which the shared part of a batch is sampled:
  self_heavy (those of the other runs, equally), uniform (all, the run's own included), weighted
  (all, by size), newest (the newest fifth of each) or local_only (no sharing)
--cross-sample-ratio X  sharing.cross_sample_ratio
--buffer-size N  replay.capacity
"""
OUTPUT = """
--run-dir DIR  parent of all run folders (default: runs/share-<time>)
--quiet  hide the live table of runs (default: show it)
"""
EXTRA = """
--extra-args ...  arguments for the `rookery train` of every run, up to the end of the line
  (default: none)
"""
SHORT = 500  # episodes below which sharing hardly helps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs = parser.add_argument_group("runs to start")
    runs.add_argument("sources", nargs="*", metavar="SCENARIO", help=SCENARIOS)
    arguments.add_flags(runs.add_mutually_exclusive_group(), NAMED)
    arguments.add_flags(runs, RUNS, gpus=arguments.whole)
    arguments.add_overrides(runs)
    arguments.add_settings(parser.add_argument_group("sharing of replay buffers"), SHARING)
    results = parser.add_argument_group("where results go")
    arguments.add_flags(results, OUTPUT)
    arguments.add_wandb(results)
    arguments.add_json(results)
    arguments.add_flags(results, EXTRA)


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        from rookery.sb3.backend import require_sb3
        from rookery.sharing.registry import shared_directory

    pool = shared_directory() / f"pool-{secrets.token_hex(4)}"
    planned = plan(args, args.run_dir or _fresh(), pool)
    if any(config.backend == "sb3" for _, config in planned):
        require_sb3()
    _refuse_missing_gpus(args.gpus or ())
    for warning in warnings(planned):
        output.notice(warning)
    return _run(args, planned, pool)


def plan(args: argparse.Namespace, parent: Path, pool: Path) -> "list[Planned]":
    """Checks the arguments of `rookery share`; returns the runs to start and their settings.

    `parent` is the parent of the run folders. Through the folder `pool` the runs share replay.
    """
    _refuse_contradictions(args)
    planned = [
        _job(args, index, scenario, parent, pool) for index, scenario in enumerate(_scenarios(args))
    ]
    _refuse_several_environments(planned)
    _refuse_other_networks(planned)
    return planned


def _scenarios(args: argparse.Namespace) -> list[str]:
    """Returns the scenario of every run."""
    flagged = [args.scenario] if args.scenario is not None else args.scenarios or []
    named = [*args.sources, *flagged]
    each = args.n_parallel or (4 if len(named) == 1 else 1)
    if not named:
        raise ConfigError(
            "nothing to train was named; give a scenario or several (`rookery list` shows them)"
        )
    if len(named) * each > arguments.MAX_SEEDS:
        raise ConfigError(
            f"--n-parallel gives {len(named) * each} runs, at most {arguments.MAX_SEEDS} are "
            "allowed; lower it"
        )
    return [scenario for scenario in named for _ in range(each)]


def _job(
    args: argparse.Namespace, index: int, scenario: str, parent: Path, pool: Path
) -> "Planned":
    from rookery.sharing.launcher import Job

    seed = args.base_seed + index
    gpu = args.gpus[index % len(args.gpus)] if args.gpus else None
    words = [scenario, "--seed", str(seed), *_words(args, gpu)]
    config = _config([*words, *args.extra_args])
    borrows = config.sharing.strategy != "local_only" and can_share(config)
    shares = borrows or config.selfplay.league
    run_dir = parent / f"{config.name}-seed{seed}"
    _refuse_taken(run_dir)
    words += ["--run-dir", str(run_dir), "--json", "--quiet"]
    if shares:
        words += ["--set", f"sharing.pool={pool}"]
        _config([*words, *args.extra_args])  # refused here, and not by the run
    command = (*TIED, "train", *words, *args.extra_args)
    steps = config.run.env_steps
    return Job(run_dir.name, scenario, seed, gpu, run_dir, steps, shares, command), config


def _words(args: argparse.Namespace, gpu: int | None) -> list[str]:
    """Returns the `--set` arguments of the `rookery train` command that starts a run.

    `gpu` is the number of the GPU of the run's learner, or None for the scenario's device.
    """
    from rookery.config.refusals import word

    device = {} if gpu is None else {"learner.device": f"cuda:{gpu}"}
    settings = arguments.given_settings(args) | device
    changes = [*args.set, *(f"{key}={word(value)}" for key, value in settings.items())]
    return [part for change in changes for part in ("--set", change)]


def _config(words: Sequence[str]) -> "Config":
    """Returns the settings of the run that `rookery train` starts with the arguments `words`."""
    parser = arguments.Parser(prog="rookery train", description=None)
    train.add_arguments(parser)
    (config,) = train.plan(arguments.parse(parser, list(words)))
    return config


def can_share(config: "Config") -> bool:
    """Returns whether a run's algorithm can learn from env steps that other policies played.

    On-policy algorithms, such as PPO of Rookery or of Stable-Baselines3, cannot; nor can IMPALA.
    """
    from rookery.config.schema import SB3_OFF_POLICY

    if config.backend == "sb3":
        return config.sb3.algorithm in SB3_OFF_POLICY
    return "sharing.pool" not in config.algo.takes


def _baseline(job: "Job", config: "Config", tasks: set[str]) -> str:
    """Returns the warning that a run shares nothing; `tasks` are those of the runs that share."""
    others = sorted(tasks - {config.env.id})
    task = (
        f"; its task is {config.env.id}, and that of the others {', '.join(others)}, so their "
        "scores cannot be compared"
        if others
        else ""
    )
    on_policy = config.backend == "sb3" or config.algo.on_policy
    kind = "is on-policy" if on_policy else "needs rows of its own policy"
    return (
        f"{job.name}: {config.algorithm} {kind} and cannot learn from other runs' rows; it runs as "
        f"a baseline and shares nothing{task}"
    )


def warnings(planned: "Sequence[Planned]") -> Iterator[str]:
    """Yields warnings as text: runs that cannot share replay, too few CPUs, too few episodes."""
    from rookery.runtime import machine

    sharing = [job.name for job, _ in planned if job.shares]
    tasks = {config.env.id for job, config in planned if job.shares}
    for job, config in planned:
        if not can_share(config):
            yield _baseline(job, config, tasks)
    if len(sharing) == 1:
        yield f"{sharing[0]} is the only run that shares, so it has no run to learn from"
    cores = machine.cores()
    if len(planned) > cores:
        yield (
            f"{len(planned)} runs share {cores} CPUs and will take turns; lower --n-parallel to "
            f"{cores} or less, or count env steps instead of seconds"
        )
    most = max(_most_episodes(config) for _, config in planned)
    if sharing and most < SHORT:
        yield _too_short(most)


def _most_episodes(config: "Config") -> int:
    """Returns the highest number of episodes that a run's limits allow, at one step per episode."""
    return min(config.run.env_steps, config.run.episodes or config.run.env_steps)


def _too_short(most: int) -> str:
    return (
        f"these runs have at most {most} episodes; with fewer than {SHORT} the runs' experience "
        "hardly differs, and sharing may not help"
    )


def _run(args: argparse.Namespace, planned: "list[Planned]", pool: Path) -> int:
    from rookery.report.console.plain_lines import is_terminal
    from rookery.report.console.runs_table import Board
    from rookery.runtime.signals import Interrupts
    from rookery.sharing.launcher import RunLauncher

    jobs = [job for job, _ in planned]
    with Interrupts() as interrupts, _pooled(planned, pool), RunLauncher(jobs) as launcher:
        interrupts.begin()
        stream = None if args.quiet else sys.stdout
        board = Board(launcher.standings, stream, terminal=is_terminal(sys.stdout))
        with contextlib.closing(board):
            while launcher.busy and not interrupts.reason:
                time.sleep(POLL_S)
                _report(launcher, board)
            if interrupts.reason:
                launcher.stop(interrupts.exit_code - 128)
            _report(launcher, board)
    _conclude(args, launcher)
    return interrupts.exit_code or (3 if any(run.failed for run in launcher.runs) else 0)


@contextlib.contextmanager
def _pooled(planned: "list[Planned]", pool: Path) -> Iterator[None]:
    """Context in which the pool exists, the folder through which runs share replay buffers.

    The pool is removed at the end. It is not made if no run shares replay and none plays in a
    league (self-play against the other runs).
    """
    if not any(job.shares for job, _ in planned):
        yield
        return
    import shutil

    from rookery.sharing.registry import create_distributed_registry

    capacity = max(config.replay.capacity for _, config in planned)
    registry = create_distributed_registry(capacity, path=pool)
    try:
        yield
    finally:
        registry.stop()
        shutil.rmtree(pool, ignore_errors=True)


def _report(launcher: "RunLauncher", board: "Board") -> None:
    """Updates the displayed table of runs; prints the last log lines of each newly failed run."""
    from rookery.sharing.launcher import SHOWN, tail

    for run in launcher.poll():
        if run.failed:
            board.say(
                f"{run.job.name} failed with exit code {run.exit_code}; its last lines "
                f"({run.log}):",
                *(f"  {line}" for line in tail(run.log, SHOWN)),
            )
    board.show()


def _conclude(args: argparse.Namespace, launcher: "RunLauncher") -> None:
    entries = [entry(run) for run in launcher.runs]
    most = max((one.get("episodes", SHORT) for one in entries if one["shares"]), default=SHORT)
    if most < SHORT:
        output.notice(_too_short(most))
    if args.json:
        output.say_json({"runs": entries})
    elif any(run.exit_code == 0 for run in launcher.runs):
        output.say(f"  rookery compare {launcher.runs[0].job.run_dir.parent}")


def entry(launched: "LaunchedRun") -> dict[str, Any]:
    """Returns one run's entry in the JSON output of `rookery share`: arguments and result."""
    job = launched.job
    asked = {key: getattr(job, key) for key in ("name", "scenario", "seed", "gpu", "shares")}
    return {
        **asked,
        "foreign_share": launched.standing.foreign,
        "run_dir": str(job.run_dir),
        "log": str(launched.log),
        "exit_code": launched.exit_code,
        **launched.answer,
    }


def _fresh() -> Path:
    return Path("runs") / f"share-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _refuse_contradictions(args: argparse.Namespace) -> None:
    for word in args.extra_args:
        flag = word.partition("=")[0]
        if flag in PER_RUN:
            raise ConfigError(
                f"{flag} in --extra-args would be the same for every run; use {PER_RUN[flag]}"
            )


def _refuse_taken(run_dir: Path) -> None:
    from rookery.config.load import RUN_FILE

    if (run_dir / RUN_FILE).exists():
        raise ConfigError(f"{run_dir} already holds a run; choose another --run-dir")


def _refuse_several_environments(planned: "list[Planned]") -> None:
    played = {config.env.id: job.scenario for job, config in planned if job.shares}
    if len(played) > 1:
        raise ConfigError(
            "runs that share need the same environment, got "
            + ", ".join(f"{env} ({scenario})" for env, scenario in played.items())
            + "; give all of them --set env.id=..., or start one `rookery share` for each"
        )


def _refuse_other_networks(planned: "list[Planned]") -> None:
    """Raises `ConfigError` if the runs of a league have different algorithms or networks.

    The runs of a league play against each other, for which they load each other's weights.
    """
    league = [(job, config) for job, config in planned if config.selfplay.league]
    for job, config in league:
        first, given = league[0][1], (config.algo.name, config.net)
        if given != (first.algo.name, first.net):
            raise ConfigError(
                f"runs of a league load each other's weights, but {job.scenario} has "
                f"algo.name {config.algo.name} and net.hidden {list(config.net.hidden)}, and "
                f"{league[0][0].scenario} has {first.algo.name} and {list(first.net.hidden)}, or "
                "another setting of net differs; give all of them the same with --set"
            )


def _refuse_missing_gpus(gpus: Sequence[int]) -> None:
    with abrupt_exit.abrupt():
        from rookery.networks.device import pick_device

    for gpu in gpus:
        pick_device(f"cuda:{gpu}", "--gpus")

"""Trains several runs at once that learn from each other's experience."""

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli import arguments, output, signals, train
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.loops.flock import Flock, Job, Member
    from rookery.report.standings import Board

EXAMPLES = """\
examples:
  rookery share --scenario sac --n-parallel 4
  rookery share --scenarios sac td3 --strategy weighted --cross-sample-ratio 0.3
  rookery share --scenario sac --gpus 0 1 0 1 --wandb
  rookery share --scenario sac --strategy local_only --extra-args --tag baseline_local
  rookery share --scenarios league league league-exploiter --cross-sample-ratio 0

Each run is a `rookery train` with its own folder, whose log.txt has all that it printed. What
stands behind --extra-args is given to each of them. Flags may be written with underscores.
"""
TIED = (sys.executable, "-m", "rookery.cli.tied")  # ends with us
LOOK_S = 0.2  # between two looks at the runs
PER_RUN = {  # what --extra-args cannot give to all runs alike, and what to use
    "--seed": "--base-seed",
    "--seeds": "--base-seed and --n-parallel",
    "--run-dir": "--run-dir in front of --extra-args",
    "--resume": "rookery train --resume, for each run",
    "--init-from": "rookery train --init-from, for each run",
    "--print-config": "rookery train --print-config",
    "--device": "--gpus",
    "--json": "--json in front of --extra-args",
}
SHORT = 500  # episodes below which sharing has hardly begun to pay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    _add_runs(parser.add_argument_group("which runs"))
    _add_sharing(parser.add_argument_group("what they share"))
    _add_output(parser.add_argument_group("where results go"))
    arguments.accept_underscores(parser)


def _add_runs(group: argparse._ArgumentGroup) -> None:
    either = group.add_mutually_exclusive_group()
    either.add_argument("--scenario", metavar="SCENARIO", help="of all runs: a name or a YAML file")
    either.add_argument(
        "--scenarios", nargs="+", metavar="SCENARIO", help="one run of each, or N of each"
    )
    group.add_argument(
        "--n-parallel", type=arguments.count, metavar="N", help="runs of a scenario; default 4"
    )
    group.add_argument(
        "--base-seed", type=int, default=42, metavar="S", help="run i has seed S + i; default 42"
    )
    group.add_argument(
        "--gpus", nargs="+", type=int, metavar="I", help="GPUs that the runs take in turn"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="any setting, of all runs; may be given often",
    )


def _add_sharing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategy",
        metavar="WORD",
        help="self_heavy (default), uniform, weighted, newest, adaptive, or local_only",
    )
    group.add_argument(
        "--cross-sample-ratio",
        type=float,
        metavar="R",
        help="share of each batch that comes from the pool; default 0.2",
    )
    group.add_argument(
        "--buffer-size", type=arguments.count, metavar="ROWS", help="replay.capacity of each run"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run-dir", metavar="DIR", help="folder of the runs' folders; default runs/share-<time>"
    )
    either = group.add_mutually_exclusive_group()  # neither: what the scenario says
    either.add_argument("--wandb", action="store_true", default=None, help="Weights & Biases too")
    either.add_argument(
        "--no-wandb", action="store_false", dest="wandb", help="not, whatever the scenario says"
    )
    group.add_argument("--json", action="store_true", help="one JSON object as the last line")
    group.add_argument("--quiet", action="store_true", help="no table")
    group.add_argument(
        "--extra-args",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="...",
        help="the rest of the line, for each `rookery train`",
    )


def run(args: argparse.Namespace) -> int:
    with signals.abrupt():
        from rookery.sharing.registry import shared_directory

    pool = shared_directory() / f"pool-{secrets.token_hex(4)}"
    jobs, configs = plan(args, Path(args.run_dir) if args.run_dir else _fresh(), pool)
    _refuse_missing_sb3(configs)
    _refuse_missing_gpus(args.gpus or ())
    for warning in warnings(jobs, configs):
        _complain(warning)
    return _run(args, jobs, configs, pool)


def plan(args: argparse.Namespace, parent: Path, pool: Path) -> "tuple[list[Job], list[Config]]":
    """Returns the runs to start and their settings, all of them checked."""
    _refuse_contradictions(args)
    jobs, configs = [], []
    for index, scenario in enumerate(_scenarios(args)):
        job, config = _job(args, index, scenario, parent, pool)
        jobs.append(job)
        configs.append(config)
    _refuse_strangers(jobs, configs)
    _refuse_other_networks(jobs, configs)
    return jobs, configs


def _scenarios(args: argparse.Namespace) -> list[str]:
    if args.scenario is not None:
        return [args.scenario] * (args.n_parallel or 4)
    return [scenario for scenario in args.scenarios for _ in range(args.n_parallel or 1)]


def _job(
    args: argparse.Namespace, index: int, scenario: str, parent: Path, pool: Path
) -> "tuple[Job, Config]":
    from rookery.loops.flock import Job

    seed = args.base_seed + index
    gpu = args.gpus[index % len(args.gpus)] if args.gpus else None
    words = [scenario, "--seed", str(seed), *_words(args, gpu)]
    config = _config([*words, *args.extra_args])
    borrows = config.sharing.strategy != "local_only" and not is_on_policy(config)
    shares = borrows or config.selfplay.league
    run_dir = parent / f"{config.name}-seed{seed}"
    _refuse_taken(run_dir)
    words += ["--run-dir", str(run_dir), "--json", "--quiet"]
    words += ["--set", f"sharing.pool={pool}"] if shares else []
    command = (*TIED, "train", *words, *args.extra_args)
    steps = config.run.env_steps
    return Job(run_dir.name, scenario, seed, gpu, run_dir, steps, shares, command), config


def _words(args: argparse.Namespace, gpu: int | None) -> list[str]:
    """Returns what all runs are told, but for the GPU."""
    words = [word for override in args.overrides for word in ("--set", override)]
    settings = {
        "sharing.strategy": args.strategy,
        "sharing.cross_sample_ratio": args.cross_sample_ratio,
        "replay.capacity": args.buffer_size,
        "learner.device": None if gpu is None else f"cuda:{gpu}",
        "report.wandb": None if args.wandb is None else str(args.wandb).lower(),
    }
    return words + [
        word
        for key, value in settings.items()
        if value is not None
        for word in ("--set", f"{key}={value}")
    ]


def _config(words: Sequence[str]) -> "Config":
    """Returns the settings that `rookery train` makes of these words."""
    parser = arguments.Parser(prog="rookery train", description=None)
    train.add_arguments(parser)
    (config,) = train.plan(arguments.parse(parser, list(words)))
    return config


def is_on_policy(config: "Config") -> bool:
    """Does a run learn only from what its present policy did?"""
    from rookery.config.schema import SB3_OFF_POLICY

    return config.backend == "sb3" and config.sb3.algorithm not in SB3_OFF_POLICY


def warnings(jobs: "Sequence[Job]", configs: "Sequence[Config]") -> Iterator[str]:
    """Says what is known to be of little use before anything is started."""
    from rookery.manage import machine

    for job, config in zip(jobs, configs, strict=True):
        if is_on_policy(config):
            yield (
                f"{job.name}: {config.sb3.algorithm} is on-policy, it learns only from what its "
                "own policy just did; it runs beside the others as a baseline and shares nothing"
            )
    sharing = [job for job in jobs if job.shares]
    if len(sharing) == 1:
        yield f"{sharing[0].name} is the only run that shares: it has nobody to learn from"
    cores = machine.cores()
    if len(jobs) > cores:
        yield (
            f"{len(jobs)} runs share {cores} CPUs and will take turns; lower --n-parallel to "
            f"{cores} or less, or count env steps instead of seconds"
        )
    if sharing and (most := max(map(_most_episodes, configs))) < SHORT:
        yield _brief(f"{most} episodes at the most")


def _most_episodes(config: "Config") -> int:
    """Returns how many episodes a run can end before it is over."""
    return min(config.run.env_steps, config.run.episodes or config.run.env_steps)


def _brief(what: str) -> str:
    return (
        f"these runs have {what}; with fewer than {SHORT} there is little that one run has and "
        "another has not, and sharing may not be worth it"
    )


def _run(args: argparse.Namespace, jobs: "list[Job]", configs: "list[Config]", pool: Path) -> int:
    from rookery.loops.flock import Flock
    from rookery.manage.interrupts import Interrupts
    from rookery.report.console import is_terminal
    from rookery.report.standings import Board

    with Interrupts() as interrupts, _pooled(jobs, configs, pool), Flock(jobs) as flock:
        interrupts.begin()
        stream = None if args.quiet else sys.stdout
        with Board(flock.standings, stream, terminal=is_terminal(sys.stdout)) as board:
            while flock.busy and not interrupts.reason:
                time.sleep(LOOK_S)
                _report(flock, board)
            if interrupts.reason:
                flock.stop(interrupts.exit_code - 128)
            _report(flock, board)
    _conclude(args, flock)
    return interrupts.exit_code or (3 if any(member.failed for member in flock.members) else 0)


@contextlib.contextmanager
def _pooled(jobs: "list[Job]", configs: "list[Config]", pool: Path) -> Iterator[None]:
    """A pool for the runs that share, and nothing of it afterwards, whoever was killed."""
    if not any(job.shares for job in jobs):
        yield
        return
    import shutil

    from rookery.sharing.registry import create_distributed_registry

    registry = create_distributed_registry(max(c.replay.capacity for c in configs), path=pool)
    try:
        yield
    finally:
        registry.stop()
        shutil.rmtree(pool, ignore_errors=True)


def _report(flock: "Flock", board: "Board") -> None:
    """Shows how the runs are doing, and what the failed ones said last."""
    from rookery.loops.flock import SHOWN, tail

    for member in flock.look():
        if member.failed:
            board.say(
                f"{member.job.name} failed with exit code {member.exit_code}; its last lines "
                f"({member.log}):",
                *(f"  {line}" for line in tail(member.log, SHOWN)),
            )
    board.show()


def _conclude(args: argparse.Namespace, flock: "Flock") -> None:
    entries = [entry(member) for member in flock.members]
    most = max((one.get("episodes", SHORT) for one in entries if one["shares"]), default=SHORT)
    if most < SHORT:
        _complain(_brief(f"{most} episodes at the most"))
    if args.json:
        output.say_json({"runs": entries})
    elif any(member.exit_code == 0 for member in flock.members):
        output.say(f"  rookery compare {flock.members[0].job.run_dir.parent}")


def entry(member: "Member") -> dict[str, Any]:
    """Returns a run as the answer has it: what it was, how it ended, and its own answer."""
    job = member.job
    return {
        "name": job.name,
        "scenario": job.scenario,
        "seed": job.seed,
        "gpu": job.gpu,
        "shares": job.shares,
        "foreign_share": member.standing.foreign,
        "run_dir": str(job.run_dir),
        "log": str(member.log),
        "exit_code": member.exit_code,
        **member.answer,
    }


def _fresh() -> Path:
    return Path("runs") / f"share-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _refuse_contradictions(args: argparse.Namespace) -> None:
    if args.scenario is None and args.scenarios is None:
        raise ConfigError(
            "nothing to train was named; give --scenario NAME or --scenarios NAME NAME "
            "(`rookery list` shows them)"
        )
    if args.base_seed < 0:
        raise ConfigError(f"--base-seed must be at least 0, got {args.base_seed}; try 42")
    for word in args.extra_args:
        flag = word.partition("=")[0]
        if flag in PER_RUN:
            raise ConfigError(
                f"{flag} in --extra-args would be the same for every run; use {PER_RUN[flag]}"
            )


def _refuse_taken(run_dir: Path) -> None:
    from rookery.config.load import RUN_FILE

    if (run_dir / RUN_FILE).exists():
        raise ConfigError(f"{run_dir} holds a run already; choose another --run-dir")


def _refuse_strangers(jobs: "list[Job]", configs: "list[Config]") -> None:
    """Refuses runs whose rows cannot be learned from by the others."""
    played = {c.env.id: j.scenario for j, c in zip(jobs, configs, strict=True) if j.shares}
    if len(played) > 1:
        raise ConfigError(
            "runs that share play one environment, got "
            + ", ".join(f"{env} ({scenario})" for env, scenario in played.items())
            + "; give all of them --set env.id=..., or share in groups"
        )


def _refuse_other_networks(jobs: "list[Job]", configs: "list[Config]") -> None:
    """Refuses a league whose runs could not play with each other's weights."""
    league = [(j, c) for j, c in zip(jobs, configs, strict=True) if c.selfplay.league]
    for job, config in league:
        first, given = league[0][1], (config.algo.name, config.net)
        if given != (first.algo.name, first.net):
            raise ConfigError(
                f"runs of a league play with each other's weights, but {job.scenario} has "
                f"algo.name {config.algo.name} and net.hidden {list(config.net.hidden)}, and "
                f"{league[0][0].scenario} has {first.algo.name} and {list(first.net.hidden)}, or "
                "another setting of net differs; give all of them the same with --set"
            )


def _refuse_missing_sb3(configs: "Sequence[Config]") -> None:
    """Every run would refuse itself: better once, before a folder is made."""
    from rookery.manage import machine

    if any(config.backend == "sb3" for config in configs):
        machine.require_sb3()


def _refuse_missing_gpus(gpus: Sequence[int]) -> None:
    if not gpus:
        return
    with signals.abrupt():
        import torch

    present = torch.cuda.device_count()
    for gpu in gpus:
        if not 0 <= gpu < present:
            raise ConfigError(
                f"--gpus has {gpu}, but this machine has {present} CUDA devices; "
                + (f"use 0 to {present - 1}" if present else "leave --gpus out")
            )


def _complain(message: str) -> None:
    print(f"rookery: {message}", file=sys.stderr, flush=True)

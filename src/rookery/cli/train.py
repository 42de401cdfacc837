"""Trains an agent, or goes on with a run that was stopped."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.config import Config

SETTINGS: dict[str, str] = {  # flag → the setting it is short for
    "mode": "run.mode",
    "engine": "run.engine",
    "address": "cluster.address",
    "learner_resources": "cluster.learner_resources",
    "shards": "replay.shards",
    "actors": "actor.num",
    "envs_per_actor": "actor.envs",
    "actor_devices": "actor.devices",
    "inference": "actor.inference",
    "seed": "run.seed",
    "env_steps": "run.env_steps",
    "episodes": "run.episodes",
    "minutes": "run.minutes",
    "target": "eval.target",
    "env": "env.id",
    "device": "learner.device",
    "learners": "learner.replicas",
    "run_dir": "run.run_dir",
    "tag": "report.tag",
    "wandb": "report.wandb",
}
FIXED = (
    "env",
    "mode",
    "actors",
    "envs_per_actor",
    "seed",
    "seeds",
    "run_dir",
    "tag",
    "init_from",
)  # not with --resume

EXAMPLES = """\
examples:
  rookery train cartpole
  rookery train my.yaml --set replay.capacity=200000 --seed 3 --run-dir runs/a
  rookery train --env Acrobot-v1 --target -100 --minutes 10
  rookery train cartpole --seeds 0-4 --json
  rookery train cartpole --mode async --actors 4
  rookery train --resume runs/a              after Ctrl+C, kill -9 or a reboot
  rookery train --resume --exact runs/a      bit for bit, from the last periodic checkpoint

`rookery list` shows the scenarios, `rookery list --settings` every setting for --set.
"""


UNFINISHED = ("interrupted", "terminated", "callback", "minutes")
VERDICTS = {
    "target": "solved",
    "env_steps": "all its env steps played",
    "episodes": "all its episodes played",
    "minutes": "its time was up",
    "callback": "stopped by a callback",
    "interrupted": "interrupted",
    "terminated": "terminated",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SCENARIO",
        help="a packaged scenario or a YAML file; with --resume the run folder",
    )
    _add_settings(parser.add_argument_group("what to train"))
    _add_stops(parser.add_argument_group("when to stop, whichever comes first"))
    _add_resume(parser.add_argument_group("where to begin"))
    _add_output(parser.add_argument_group("where results go"))


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="any setting, such as replay.batch=64; may be given often",
    )
    group.add_argument("--env", metavar="ID", help="Gymnasium id, module:Id or module:Class")
    group.add_argument("--mode", metavar="MODE", help="single, sync or async")
    group.add_argument("--actors", type=int, metavar="N", help="how many, in sync and async")
    group.add_argument(
        "--envs-per-actor", type=int, metavar="E", help="environments that an actor steps together"
    )
    group.add_argument(
        "--engine", metavar="ENGINE", help="where actors live: inline, processes or ray"
    )
    group.add_argument(
        "--address", metavar="HOST:PORT", help="of a Ray cluster, or auto; without it a local one"
    )
    group.add_argument(
        "--learner-resources",
        type=arguments.amounts,
        metavar="GPU=1,...",
        help="of a cluster's host that the learner is to live on; without it: here",
    )
    group.add_argument("--shards", type=int, metavar="N", help="pieces that replay is kept in")
    group.add_argument(
        "--actor-devices",
        type=arguments.words,
        metavar="CUDA:0,CUDA:1",
        help="GPUs that actors take in turn; without it they play on the CPU",
    )
    group.add_argument(
        "--inference",
        metavar="WHERE",
        help="local: each actor has a network; central: one server answers all of them",
    )
    group.add_argument("--device", metavar="DEVICE", help="of the learner: auto, cpu or cuda:N")
    group.add_argument(
        "--learners", type=int, metavar="N", help="that share every batch, on a GPU each"
    )
    either = group.add_mutually_exclusive_group()
    either.add_argument("--seed", type=int, metavar="N", help="everything random follows from it")
    either.add_argument(
        "--seeds",
        type=arguments.seeds,
        metavar="N-M",
        help="0-4 or 0,2,5: several runs, one after another",
    )


def _add_stops(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--env-steps", type=int, metavar="N", help="environment steps")
    group.add_argument("--episodes", type=int, metavar="N", help="finished episodes")
    group.add_argument("--minutes", type=float, metavar="X", help="minutes")
    group.add_argument("--target", type=float, metavar="S", help="mean return when evaluated")


def _add_resume(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder SCENARIO names"
    )
    group.add_argument(
        "--exact", action="store_true", help="with --resume: as if it had never been interrupted"
    )
    group.add_argument("--init-from", metavar="RUN", help="a new run with the weights of another")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run-dir", metavar="DIR", help="folder of the run; with --seeds the folder of its runs"
    )
    group.add_argument("--tag", metavar="WORD", help="a word in the folder's name and in trackers")
    # None, not False: without the flag the file's own setting stands.
    group.add_argument("--wandb", action="store_true", default=None, help="Weights & Biases too")
    group.add_argument("--print-config", action="store_true", help="print all settings and stop")
    group.add_argument("--json", action="store_true", help="one JSON object as the last line")
    group.add_argument("--quiet", action="store_true", help="no live view")


def run(args: argparse.Namespace) -> int:
    configs = plan(args)
    if args.print_config:
        _print(configs, as_json=args.json)
        return 0
    with signals.abrupt():
        from rookery.loops.launch import launch
        from rookery.loops.replica import follow, rank_of

    _refuse_several_at_one_door(configs)
    if rank_of(configs[0]):
        return follow(configs[0])
    answers, code = [], 0
    for config in configs:
        outcome = launch(
            config,
            resume=Path(args.source) if args.resume else None,
            exact=args.exact,
            init_from=args.init_from,
            quiet=args.quiet,
        )
        answers.append(outcome.answer)
        code = code or outcome.exit_code
        if not args.json:
            output.say(*summary(outcome.answer, config))
        if outcome.exit_code > 128:  # a signal asks for the end of all, not of this one
            break
    if args.json:
        output.say_json({"runs": answers} if args.seeds else answers[0])
    return code


def plan(args: argparse.Namespace) -> list["Config"]:
    """Returns the settings of every run that is asked for, all of them checked."""
    from rookery.config.load import load, load_run

    _refuse_contradictions(args)
    changes = {
        key: getattr(args, flag)
        for flag, key in SETTINGS.items()
        if getattr(args, flag) is not None
    }
    if args.resume:
        return [load_run(args.source, overrides=args.overrides, changes=changes)]
    return [
        load(args.source, overrides=args.overrides, changes=changes | extra)
        for extra in _variants(args)
    ]


def summary(answer: dict[str, Any], config: "Config") -> list[str]:
    """Says in three lines what a run came to and how to go on with it."""
    run_dir, score = answer["run_dir"], answer["best_score"]
    scored = "never evaluated" if score is None else f"best score {score:.2f}"
    verdict = VERDICTS[answer["reason"]]
    first = (
        f"{run_dir}: {scored}, {verdict} after {answer['env_steps']:,} env steps "
        f"and {answer['train_s']:.1f} s of training"
    )
    if config.backend == "sb3":
        name = config.sb3.algorithm
        return [first, f'  stable_baselines3.{name}.load("{run_dir}/model.zip")']
    return [
        first,
        f"  rookery evaluate {run_dir}",
        *([f"  rookery train --resume {run_dir}"] if answer["reason"] in UNFINISHED else []),
    ]


def _variants(args: argparse.Namespace) -> list[dict[str, Any]]:
    if not args.seeds:
        return [{}]
    folder = args.run_dir
    return [
        {"run.seed": seed} | ({"run.run_dir": str(Path(folder) / f"seed-{seed}")} if folder else {})
        for seed in args.seeds
    ]


def _refuse_contradictions(args: argparse.Namespace) -> None:
    if args.exact and not args.resume:
        raise ConfigError("--exact goes with --resume; write rookery train --resume --exact RUN")
    if args.resume:
        _refuse_with_resume(args)
    elif args.source is None and args.env is None and not args.print_config:
        raise ConfigError(
            "nothing to train was named; give a scenario (`rookery list` shows them), "
            "the path of a .yaml file, --env ID, or --resume RUN"
        )


def _refuse_several_at_one_door(configs: list["Config"]) -> None:
    place = configs[0].learner.rendezvous
    if place is not None and len(configs) > 1:
        raise ConfigError(
            f"learners from other hosts come to {place} for one run, got {len(configs)} --seeds; "
            "use --seed, or leave learner.rendezvous out"
        )


def _refuse_with_resume(args: argparse.Namespace) -> None:
    if args.source is None:
        raise ConfigError("--resume needs the run folder; write rookery train --resume RUN")
    for name in FIXED:
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} cannot change with --resume: it is part of what the run is; "
                f"leave {flag} out, or begin a new run with --init-from {args.source}"
            )


def _print(configs: list["Config"], *, as_json: bool) -> None:
    from rookery.config.load import as_dict, dump

    if as_json:
        answers = [as_dict(config) for config in configs]
        output.say_json(answers[0] if len(answers) == 1 else {"runs": answers})
    else:
        output.say("---\n".join(dump(config) for config in configs).rstrip("\n"))

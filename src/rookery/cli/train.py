"""Train an agent with a scenario (a named training configuration), or resume a stopped run.

A run has actors, which play environments and fill a replay buffer, a learner, which trains the
network on batches from it, and an evaluation process, which measures the score. All files of the
run are in its run folder.
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output
from rookery.terminal.arguments import amounts, folder, whole, words

if TYPE_CHECKING:
    from rookery.config import Config

SOURCE = (
    "scenario, a named training configuration that `rookery list` shows, or a YAML file with "
    "settings; the name of an algorithm or an environment, with its defaults; with --resume, the "
    "run folder (default: none; --env is then required)"
)
WHAT = """
--algo NAME  algo.name
--env ID  env.id: environment: Gymnasium id, module:Id (imports the module first) or module:Class
--mode MODE  run.mode: training loop: single (one process plays and learns), sync (actors and
  learner take turns), async (actors and learner run in parallel), device (environments, replay
  buffer and learner on one device, usually a GPU)
--actors N  actor.num
--envs-per-actor N  actor.envs
--engine ENGINE  run.engine: place of the actors: inline (in the learner's process), processes (one
  process per actor), ray (on the hosts of a Ray cluster), or auto (inline in single and device
  mode, otherwise processes)
--address HOST:PORT  cluster.address: address of a Ray cluster, or auto to find it
--learner-resources GPU=1,...  cluster.learner_resources: Ray resources that a host of the cluster
  must have to run the learner there
--shards N  replay.shards: parts into which the replay buffer is split
--actor-devices CUDA:0,CUDA:1  actor.devices: GPUs on which actors take turns to compute actions
--inference WHERE  actor.inference: place where the network computes actions: local (in each actor
  process) or central (in one inference server process for all actors)
--device DEVICE  learner.device
--learners N  learner.replicas
"""
SEED = "--seed SEED  run.seed"
SEEDS = """
--seeds N-M  seeds of several runs, trained one after another, such as 0-4 or 0,2,5 (default: one
  run)
"""
STOPS = """
--env-steps N  run.env_steps
--episodes N  run.episodes
--minutes X  run.minutes
--target X  eval.target
"""
START = """
--resume  resume a stopped run; SCENARIO is then its run folder (default: start a new run)
--exact  with --resume, continue from the newest checkpoint that gives bit for bit the same result
  as a run that never stopped (default: from the newest checkpoint of any kind)
--init-from RUN  run folder whose best weights a new run starts with (default: random weights)
"""
RESULTS = """
--run-dir DIR  run.run_dir: run folder; of --seeds, the parent of all
--tag WORD  report.tag: word in the run folder's name and in experiment trackers, by which `rookery
  compare` groups runs
"""
OUTPUT = """
--print-config  print all settings and exit (default: train)
--quiet  hide the live display of progress (default: show it)
"""
FIXED = {  # flags that --resume does not take, and where their values are
    "--algo": "algo.name",
    "--env": "env.id",
    "--mode": "run.mode",
    "--actors": "actor.num",
    "--envs-per-actor": "actor.envs",
    "--seed": "run.seed",
    "--seeds": "seeds",
    "--run-dir": "run.run_dir",
    "--tag": "report.tag",
    "--init-from": "init_from",
}
EXAMPLES = """\
examples:
  rookery train cartpole
  rookery train my.yaml --set replay.capacity=200000 --seed 3 --run-dir runs/a
  rookery train Acrobot-v1 --target -100 --minutes 10
  rookery train sac --env Pendulum-v1
  rookery train cartpole --seeds 0-4 --json
  rookery train cartpole --mode async --actors 4
  rookery train --resume runs/a              after Ctrl+C, kill -9 or a reboot
  rookery train --resume --exact runs/a      bit for bit, from the last periodic checkpoint

`rookery list` shows the scenarios, `rookery list --settings` every setting for --set.
"""


ENVIRONMENT = re.compile(r"-v\d+$|:")  # what is no name of a scenario
UNFINISHED = ("interrupted", "terminated", "callback", "minutes")
VERDICTS = {
    "target": "solved",
    "env_steps": "env step limit reached",
    "episodes": "episode limit reached",
    "minutes": "time limit reached",
    "callback": "stopped by a callback",
    "interrupted": "interrupted",
    "terminated": "terminated",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", metavar="SCENARIO", help=SOURCE)
    what = parser.add_argument_group("what to train")
    arguments.add_overrides(what)
    arguments.add_settings(what, WHAT, learner_resources=amounts, actor_devices=words)
    either = what.add_mutually_exclusive_group()
    arguments.add_settings(either, SEED, seed=whole)
    arguments.add_flags(either, SEEDS, seeds=arguments.seeds)
    stops = parser.add_argument_group("when to stop, whichever comes first")
    arguments.add_settings(stops, STOPS)
    arguments.add_flags(parser.add_argument_group("where to begin"), START)
    results = parser.add_argument_group("where results go")
    arguments.add_settings(results, RESULTS, run_dir=folder)
    arguments.add_wandb(results)
    arguments.add_flags(results, OUTPUT)
    arguments.add_json(results)


def run(args: argparse.Namespace) -> int:
    configs = plan(args)
    if args.print_config:
        _print(args, configs)
        return 0
    with abrupt_exit.abrupt():
        from rookery.learner.data_parallel.follower import rank_of, run_follower
        from rookery.training.launch import launch

    _refuse_shared_rendezvous(configs)
    if rank_of(configs[0]):
        return run_follower(configs[0])
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
        if outcome.exit_code > 128:  # a signal ends all runs, not only this one
            break
    if args.json:
        output.say_json({"runs": answers} if args.seeds else answers[0])
    return code


def plan(args: argparse.Namespace) -> list["Config"]:
    """Checks the arguments of `rookery train`; returns the settings of every requested run."""
    from rookery.config.load import load, load_run

    _take_environment(args)
    _refuse_contradictions(args)
    changes = arguments.given_settings(args)
    if args.resume:
        return [load_run(args.source, overrides=args.set, changes=changes)]
    return [
        load(args.source, overrides=args.set, changes=changes | extra) for extra in _variants(args)
    ]


def summary(answer: dict[str, Any], config: "Config") -> list[str]:
    """Returns lines of text for the end of a run: its result, and commands to try next."""
    run_dir, score = answer["run_dir"], answer["best_score"]
    scored = "never evaluated" if score is None else f"best score {score:.2f}"
    verdict = VERDICTS[answer["reason"]]
    first = (
        f"{run_dir}: {scored}, {verdict} after {answer['env_steps']:,} env steps "
        f"and {answer['train_s']:.1f} s of training"
    )
    sb3 = f'  stable_baselines3.{config.sb3.algorithm}.load("{run_dir}/model.zip")'
    return [
        first,
        *([sb3] if config.backend == "sb3" else []),
        f"  rookery evaluate {run_dir}",
        *([f"  rookery train --resume {run_dir}"] if answer["reason"] in UNFINISHED else []),
    ]


def _variants(args: argparse.Namespace) -> list[dict[str, Any]]:
    if not args.seeds:
        return [{}]
    parent = getattr(args, "run.run_dir")
    return [
        {"run.seed": seed} | ({"run.run_dir": str(Path(parent) / f"seed-{seed}")} if parent else {})
        for seed in args.seeds
    ]


def _take_environment(args: argparse.Namespace) -> None:
    """Takes an environment in the place of SCENARIO as --env; DQN trains in it, or --algo does."""
    given = args.source or ""
    if ENVIRONMENT.search(given) and not (args.resume or Path(given).exists()):
        if (other := getattr(args, "env.id")) is not None:
            raise ConfigError(f"two environments were given, {given} and {other}; name one")
        setattr(args, "env.id", given)
        args.source = None


def _refuse_contradictions(args: argparse.Namespace) -> None:
    if args.init_from == "":
        raise ConfigError(
            "--init-from needs a run folder, got an empty name; name it, or leave out"
        )
    if args.exact and not args.resume:
        raise ConfigError("--exact needs --resume; write rookery train --resume --exact RUN")
    if args.resume:
        _refuse_with_resume(args)
    elif args.source is None and getattr(args, "env.id") is None and not args.print_config:
        raise ConfigError(
            "nothing to train was named; give a scenario (`rookery list` shows them), "
            "the path of a .yaml file, --env ID, or --resume RUN"
        )


def _refuse_shared_rendezvous(configs: list["Config"]) -> None:
    address = configs[0].learner.rendezvous
    if address is not None and len(configs) > 1:
        raise ConfigError(
            f"learner.rendezvous {address} serves one run, got {len(configs)} --seeds; "
            "use --seed, or leave learner.rendezvous out"
        )


def _refuse_with_resume(args: argparse.Namespace) -> None:
    if args.source is None:
        raise ConfigError("--resume needs the run folder; write rookery train --resume RUN")
    for flag, name in FIXED.items():
        if getattr(args, name) is not None:
            raise ConfigError(
                f"{flag} cannot change with --resume; leave {flag} out, or start a new run with "
                f"--init-from {args.source}"
            )


def _print(args: argparse.Namespace, configs: list["Config"]) -> None:
    from rookery.config.load import as_dict, dump

    answers = [as_dict(config) for config in configs]
    text = "---\n".join(dump(config) for config in configs).rstrip("\n")
    output.answer(args, answers[0] if len(answers) == 1 else {"runs": answers}, [text])

"""Command `rookery pathfinding`: evaluates path-finding policies, draws episodes, runs a demo."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.config.checks import DEVICE
from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.pathfinding.evaluation.case_sets import CaseEvaluator, CaseSet

EXAMPLES = """\
examples:
  rookery pathfinding demo
  rookery pathfinding evaluate runs/a --agents 8,16,32,64 --cases 200 --json
  rookery pathfinding evaluate demo --size 17-21 --density 0.1-0.3 --steps 128 --planner
  rookery pathfinding show runs/a --agents 32 --out episode.svg
"""
SOURCE = "policy: a run folder, a file of `rookery export`, or demo (shipped with the library)"
DEMO = "demo"
FORMATS = ("svg", "gif")
STEPS, SHOWN_STEPS = 256, 128  # step limits: of an evaluation; of an episode that is drawn
LAST_CASE = 10**6  # highest problem instance number of --case
MIN_PACE, DEMO_PACE, MAX_PACE = 0.1, 4.0, 50.0  # steps per second
MAX_TEMPERATURE = 1_000.0  # of --temperature: practically random
METHOD_NAMES = {"results": "policy", "baseline": "shortest paths", "planner": "planner"}
COLUMNS = (  # of the printed results: heading, width, key of the JSON answer, format
    ("agents", 8, "agents", ""),
    ("size", 9, "size", ""),
    ("cases", 7, "cases", ""),
    ("success", 9, "success", ".1%"),
    ("individual", 12, "individual_success", ".1%"),
    ("length", 8, "mean_length", ".1f"),
    ("sum of costs", 14, "sum_of_costs", ".1f"),
)


class RandomCases(NamedTuple):
    """Parameters of random problem instances: team sizes, map sizes, obstacle densities, count."""

    agents: Sequence[int]
    sizes: tuple[int, int]
    densities: tuple[float, float]
    cases: int  # for each number of agents


EVALUATED = RandomCases((8, 16, 32, 64), (40, 40), (0.3, 0.3), 200)
SHOWN = RandomCases((16,), (20, 20), (0.2, 0.2), 1)
DEMO_CASES = RandomCases((8, 16, 32), (20, 20), (0.2, 0.2), 20)


EVERY_VERB = """
--seed SEED  seed of random problem instances, sampled actions and the planner (default 0)
--device DEVICE  device of the policy: auto, cpu or cuda:N (default auto)
--threads N  CPU threads of torch (default: torch's choice)
"""
EVALUATE = """
--cases N  problem instances (map, starts, goals) for each number of agents (default: 200, or all
  of --cases-file)
--baseline  also evaluate agents that follow shortest paths and ignore each other (default: not)
--planner  also evaluate a centralized MAPF planner, LaCAM (default: not)
--shield  replace the policy's actions that would collide, by the MAPF method PIBT (default: not)
"""
SHOW = """
--case K  index of the problem instance (map, starts, goals) to draw (default 0)
--pace P  env steps that the animation shows per second (default 4)
--out FILE  file to write the animation to, SVG or GIF (default: episode.svg in the run folder, or
  in the current folder if RUN is none)
--format {svg,gif}  format of the file (default: by the extension of --out)
"""
SHOW_DEMO = """
--cases N  problem instances for each number of agents (default 20)
--out FILE  file to write the animation to, SVG or GIF (default demo.svg)
"""
POLICY = """
--agents N,N  numbers of agents, with commas (default: {agents})
--size S  rows and columns of random maps, or a range such as 17-21 (default: {size})
--density D  share of blocked cells, or a range such as 0.1-0.3 (default: {density})
--cases-file F.npz  NumPy file of problem instances: arrays maps, starts and goals (default: random
  ones)
--map F.map  map file in MovingAI format; needs --scen (default: random maps)
--scen F.scen  MovingAI scenario file: one agent's start and goal on --map in each row. The first
  rows, as many as agents, are one problem instance; repeatable (default: none)
--steps N  maximum env steps of an episode (default {steps})
--collision {{reference,soft}}  name of the rule for conflicting moves: two agents cannot swap
  cells, and of several that move to one cell the one with the lowest number moves; soft, the rule
  of POGEMA, lets the same agents move (default reference)
--temperature T  temperature of the softmax over Q values from which actions are sampled; 0: greedy
  (default: algo.temperature of the run)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        subparser = verbs.add_parser(name, help=verb.about, description=verb.about)
        verb.add_arguments(subparser)
        arguments.add_flags(subparser, EVERY_VERB)
        arguments.add_json(subparser)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    _add_policy(parser, EVALUATED, STEPS)
    arguments.add_flags(parser, EVALUATE)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_policy(parser, SHOWN, SHOWN_STEPS)
    pace = arguments.between(MIN_PACE, MAX_PACE)
    arguments.add_flags(parser, SHOW, case=_case, pace=pace, out=str)
    parser.set_defaults(cases=None, shield=False)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    arguments.add_flags(parser, SHOW_DEMO, out=str)


def _add_policy(parser: argparse.ArgumentParser, usual: RandomCases, steps: int) -> None:
    """Adds the policy, the problem instances that it plays, and the rules to a parser."""
    parser.add_argument("run", metavar="RUN", help=SOURCE)
    arguments.add_checkpoint(parser)
    flags = POLICY.format(
        agents=",".join(map(str, usual.agents)),
        size=usual.sizes[0],
        density=usual.densities[0],
        steps=steps,
    )
    temperature = arguments.between(0.0, MAX_TEMPERATURE)
    arguments.add_flags(
        parser,
        flags,
        agents=arguments.counts,
        size=sizes,
        density=densities,
        temperature=temperature,
    )


def run(args: argparse.Namespace) -> int:
    DEVICE.check("--device", args.device)
    return VERBS[args.verb].run(args)


def _evaluate(args: argparse.Namespace) -> int:
    _refuse_wrong_sources(args)
    evaluator = _evaluator(args)
    keys = ["results", *(key for key in ("baseline", "planner") if getattr(args, key))]
    answer: dict[str, Any] = {
        "run": args.run,
        "version": evaluator.policy.version,
        "steps": args.steps,
        "collision": args.collision,
        "shield": args.shield,
        "temperature": evaluator.policy.algo.temperature,
    }
    answer |= _evaluate_methods(evaluator, _case_sets(args, EVALUATED), keys, quiet=args.json)
    if args.json:
        output.say_json(answer)
    return 0


def _show(args: argparse.Namespace) -> int:
    _refuse_wrong_sources(args)
    if args.agents and len(args.agents) > 1:
        raise ConfigError(
            f"show draws one problem instance, got --agents {','.join(map(str, args.agents))}; "
            "give one number above 0"
        )
    out, format = arguments.target(_folder(args.run) / "episode", args.out, args.format, FORMATS)
    evaluator = _evaluator(args)
    from rookery.pathfinding.evaluation.case_sets import record_case

    usual = SHOWN._replace(cases=args.case + 1)
    case_set = next(iter(_case_sets(args, usual)))
    answer = record_case(evaluator, case_set, args.case, out, format=format, pace=args.pace)
    output.answer(args, answer, [picture_line(answer)])
    return 0


def _demo(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(DEMO), args.out, None, FORMATS)
    with abrupt_exit.abrupt():
        from rookery.pathfinding.evaluation.case_sets import (
            CaseEvaluator,
            random_case_sets,
            record_case,
        )
        from rookery.pathfinding.evaluation.team_policy import load_packaged_policy

    policy = load_packaged_policy(device=args.device, threads=args.threads)
    evaluator = CaseEvaluator(policy=policy, rules=policy.rules(steps=SHOWN_STEPS), seed=args.seed)
    sample = DEMO_CASES._replace(cases=args.cases)
    case_sets = random_case_sets(**sample._asdict(), seed=args.seed)
    answer = _evaluate_methods(evaluator, case_sets, ["results"], quiet=args.json)
    case_set = next(random_case_sets(**SHOWN._asdict(), seed=args.seed))
    answer |= record_case(evaluator, case_set, 0, out, format=format, pace=DEMO_PACE)
    output.answer(args, answer, [picture_line(answer)])
    return 0


def _evaluator(args: argparse.Namespace) -> "CaseEvaluator":
    """Loads the policy named on the command line; returns an evaluator of this policy.

    The evaluator has the command line's options, such as step limit and collision rule.
    """
    if args.run != DEMO and not Path(args.run).is_file():
        arguments.require_run(args.run)  # errors come before torch is imported
    with abrupt_exit.abrupt():
        from rookery.pathfinding.evaluation.case_sets import CaseEvaluator
        from rookery.pathfinding.evaluation.team_policy import load_team_policy

    policy = load_team_policy(
        args.run, checkpoint=args.checkpoint, device=args.device, threads=args.threads
    )
    policy = policy if args.temperature is None else policy.with_temperature(args.temperature)
    rules = policy.rules(steps=args.steps, collision=args.collision)
    return CaseEvaluator(policy=policy, rules=rules, seed=args.seed, shield=args.shield)


def _folder(run: str) -> Path:
    """Returns the folder for animations: `run` if it is a run folder, else the current folder."""
    from rookery.config.load import RUN_FILE

    return Path(run) if (Path(run) / RUN_FILE).is_file() else Path()


def _evaluate_methods(
    evaluator: "CaseEvaluator", case_sets: Iterable["CaseSet"], keys: Sequence[str], *, quiet: bool
) -> dict[str, Any]:
    """Evaluates the policy, and on request baseline and planner, on sets of problem instances.

    `keys` names these methods: results (the policy), baseline, planner. Returns a list of results
    for each key. Prints each result as soon as it is known, unless `quiet`.
    """
    answer: dict[str, Any] = {key: [] for key in keys}
    if not quiet:
        output.say(heading(len(keys) > 1))
    for case_set in case_sets:
        for key in keys:
            result = evaluator.evaluate(key, case_set)._asdict()
            answer[key].append(result)
            if not quiet:
                output.say(row(result, METHOD_NAMES[key] if len(keys) > 1 else ""))
    return answer


def _case_sets(args: argparse.Namespace, usual: RandomCases) -> Iterable["CaseSet"]:
    """Returns the sets of problem instances (map, starts, goals) that command-line flags ask for.

    They are random or from files; `usual` has the default parameters of random ones.
    """
    from rookery.pathfinding.evaluation import case_sets

    if args.cases_file:
        return [case_sets.from_file(args.cases_file, agents=args.agents, count=args.cases)]
    agents = args.agents or usual.agents
    if args.map:
        return case_sets.from_map(args.map, args.scen, agents)
    return case_sets.random_case_sets(
        args.cases or usual.cases,
        agents=agents,
        sizes=args.size or usual.sizes,
        densities=args.density or usual.densities,
        seed=args.seed,
    )


def heading(several: bool) -> str:
    """Returns the header line of the printed evaluation results.

    With `several`, there is a column that names the method: policy, baseline or planner.
    """
    return "".join(f"{head:>{width}}" for head, width, *_ in COLUMNS) + ("  by" if several else "")


def row(result: Mapping[str, Any], who: str = "") -> str:
    """Returns one line of the printed evaluation results: means over one set of problem instances.

    `who` names the method in the last column; an empty text leaves the column out.
    """
    cells = (f"{result[key]:{spec}}".rjust(width) for _, width, key, spec in COLUMNS)
    return "".join(cells) + (f"  {who}" if who else "")


def picture_line(answer: Mapping[str, Any]) -> str:
    """Returns a line about an animation: its file, how the episode ended, and the file's size."""
    home = f"{answer['home']} of {answer['agents']} agents home after {answer['length']} steps"
    return f"{answer['file']}: {home}, {output.size(answer['bytes'])}"


def _refuse_wrong_sources(args: argparse.Namespace) -> None:
    """Raises ConfigError for flags that contradict each other, such as --map with --size."""
    if bool(args.map) != bool(args.scen):
        raise ConfigError(
            f"--map is {args.map} and --scen {args.scen}; a map has no starts and goals, and a "
            "scenario has no map: give both, or neither"
        )
    if args.map and args.cases_file:
        raise ConfigError(
            "--cases-file and --map both give problem instances; leave one of them out"
        )
    read = "--cases-file" if args.cases_file else "--map" if args.map else ""
    drawn = ("size", "density", *(("cases",) if args.map else ()))
    wrong = [f"--{name}" for name in drawn if read and getattr(args, name) is not None]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)} and {read} were given; the former is for random instances, "
            "the latter reads instances from a file; leave one of them out"
        )


def sizes(text: str) -> tuple[int, int]:
    """Parses a map size `40`, or a range of sizes `17-21`; returns the lowest and the highest."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 2 <= low <= high:
        raise argparse.ArgumentTypeError(f"needs a size of at least 2, or 17-21, got {text!r}")
    return low, high


def densities(text: str) -> tuple[float, float]:
    """Parses an obstacle density `0.3`, or a range `0.1-0.3`; returns lowest and highest."""
    match = re.fullmatch(r"(\d?\.?\d+)(?:-(\d?\.?\d+))?", text)
    low, high = (float(match[1]), float(match[2] or match[1])) if match else (1.0, 1.0)
    if not 0 <= low <= high < 1:
        raise argparse.ArgumentTypeError(
            f"needs a share of blocked cells from 0 to below 1, or 0.1-0.3, got {text!r}"
        )
    return low, high


def _case(text: str) -> int:
    """Parses the index of a problem instance, from 0 to `LAST_CASE`.

    It is limited because all instances before it are drawn.
    """
    if (case := arguments.seed(text)) > LAST_CASE:
        raise argparse.ArgumentTypeError(f"needs a whole number from 0 to {LAST_CASE}, got {text}")
    return case


class Subcommand(NamedTuple):
    """A subcommand of `rookery pathfinding`: its help text and its two functions."""

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


VERBS: dict[str, Subcommand] = {
    "evaluate": Subcommand(
        "play problem instances with a policy; report success, makespan and sum of costs",
        _add_evaluate,
        _evaluate,
    ),
    "show": Subcommand(
        "play one problem instance and draw it as an animated SVG or GIF", _add_show, _show
    ),
    "demo": Subcommand(
        "evaluate and draw the policy that comes with the library", _add_demo, _demo
    ),
}

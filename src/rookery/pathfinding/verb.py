"""Command `rookery pathfinding`: evaluates path-finding policies, draws episodes, runs a demo."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
COLLISIONS = ("reference", "soft")
SHOWN_STEPS = 128  # step limit of a problem instance that is drawn
LAST_CASE = 10**6  # highest problem instance number of --case
MIN_PACE, PACE, MAX_PACE = 0.1, 4.0, 50.0  # steps per second
MAX_TEMPERATURE = 1_000.0  # of --temperature: practically random
METHOD_NAMES = {"results": "policy", "baseline": "shortest paths", "planner": "planner"}
HEAD = ("agents", "size", "cases", "success", "individual", "length", "sum of costs")
WIDTHS = (8, 9, 7, 9, 12, 8, 14)


class RandomCases(NamedTuple):
    """Parameters of random problem instances: team sizes, map sizes, obstacle densities, count."""

    agents: Sequence[int]
    sizes: tuple[int, int]
    densities: tuple[float, float]
    cases: int  # for each number of agents


EVALUATED = RandomCases((8, 16, 32, 64), (40, 40), (0.3, 0.3), 200)
SHOWN = RandomCases((16,), (20, 20), (0.2, 0.2), 1)
DEMO_CASES = RandomCases((8, 16, 32), (20, 20), (0.2, 0.2), 20)


class Subcommand(NamedTuple):
    """A subcommand of `rookery pathfinding`: help text, argument parser setup, and function."""

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        verb.add_arguments(verbs.add_parser(name, help=verb.about, description=verb.about))


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb].run(args)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=SOURCE)
    drawn = _add_cases(parser)
    drawn.add_argument(
        "--agents",
        type=arguments.counts,
        metavar="N,...",
        help="numbers of agents to evaluate, separated by commas (default 8,16,32,64)",
    )
    drawn.add_argument(
        "--size",
        type=sizes,
        metavar="S",
        help="rows and columns of random maps, or a range such as 17-21 (default 40)",
    )
    drawn.add_argument(
        "--density",
        type=densities,
        metavar="D",
        help="share of blocked cells in random maps, or a range such as 0.1-0.3 (default 0.3)",
    )
    drawn.add_argument(
        "--cases",
        type=arguments.count,
        metavar="N",
        help="problem instances (map, starts, goals) for each number of agents (default 200, or "
        "all of --cases-file)",
    )
    _add_rules(parser, steps=256)
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="also evaluate agents that follow their shortest paths and ignore each other "
        "(default: only the policy)",
    )
    parser.add_argument(
        "--planner",
        action="store_true",
        help="also evaluate a centralized MAPF planner, LaCAM (default: only the policy)",
    )
    parser.add_argument(
        "--shield",
        action="store_true",
        help="replace actions of the policy that would make agents collide, by the MAPF method "
        "PIBT (default: keep them)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object (default: text)"
    )


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=SOURCE)
    drawn = _add_cases(parser)
    drawn.add_argument(
        "--agents", type=_one_count, metavar="N", help="number of agents on the map (default 16)"
    )
    drawn.add_argument(
        "--size",
        type=sizes,
        metavar="S",
        help="rows and columns of the random map, or a range such as 17-21 (default 20)",
    )
    drawn.add_argument(
        "--density",
        type=densities,
        metavar="D",
        help="share of blocked cells in the random map, or a range such as 0.1-0.3 (default 0.2)",
    )
    parser.add_argument(
        "--case",
        type=_case,
        default=0,
        metavar="K",
        help="index of the problem instance (map, starts, goals) to play and draw (default 0)",
    )
    _add_rules(parser, steps=SHOWN_STEPS)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write the animation to (default: episode.svg in the run folder, or in the "
        "current folder if RUN is no folder)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="file format of the animation (default: by the file extension of --out)",
    )
    parser.add_argument(
        "--pace",
        type=arguments.between(MIN_PACE, MAX_PACE),
        default=PACE,
        metavar="P",
        help="env steps that the animation shows per second (default 4)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object (default: text)"
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        default="demo.svg",
        metavar="FILE",
        help="file to write the animation to, SVG or GIF (default demo.svg)",
    )
    parser.add_argument(
        "--cases",
        type=arguments.count,
        default=20,
        metavar="N",
        help="random problem instances for each number of agents, 8, 16 and 32 (default 20)",
    )
    parser.add_argument(
        "--seed",
        type=number,
        default=0,
        metavar="S",
        help="seed of random problem instances and of sampled actions (default 0)",
    )
    _add_place(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object (default: text)"
    )


def _add_cases(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the flags that choose problem instances (map, starts, goals): random or from files.

    Returns the argument group for random instances, to which the caller adds further flags.
    """
    drawn = parser.add_argument_group("random cases")
    drawn.add_argument(
        "--seed",
        type=number,
        metavar="S",
        help="seed of random problem instances, sampled actions and the planner (default 0)",
    )
    read = parser.add_argument_group("problem instances from files")
    read.add_argument(
        "--cases-file",
        metavar="F.npz",
        help="NumPy file of problem instances: arrays maps, starts and goals (default: random)",
    )
    read.add_argument(
        "--map",
        metavar="F.map",
        help="map file in MovingAI format; needs --scen (default: random maps)",
    )
    read.add_argument(
        "--scen",
        action="append",
        metavar="F.scen",
        help="MovingAI scenario file: one agent's start and goal on --map in each row. The first "
        "rows, as many as agents, are one problem instance; repeatable (default: none)",
    )
    return drawn


def _add_rules(parser: argparse.ArgumentParser, steps: int) -> None:
    parser.add_argument(
        "--steps",
        type=arguments.count,
        default=steps,
        metavar="N",
        help=f"maximum env steps of an episode (default {steps})",
    )
    parser.add_argument(
        "--collision",
        choices=COLLISIONS,
        default="reference",
        help="rule for conflicting moves; reference: two agents cannot swap cells, and of several "
        "that move to one cell the one with the lowest number moves; soft: the rule `soft` of "
        "POGEMA (default reference)",
    )
    parser.add_argument(
        "--temperature",
        type=arguments.between(0.0, MAX_TEMPERATURE),
        metavar="T",
        help="temperature of the softmax over Q values from which actions are sampled; 0: greedy "
        "(default: algo.temperature of the run)",
    )
    parser.add_argument(
        "--checkpoint",
        type=arguments.checkpoint,
        default="best",
        metavar="WHICH",
        help="checkpoint to load: best, last, or its number of env steps (default best)",
    )
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=device,
        default="auto",
        help="device that runs the policy: auto, cpu or cuda:N (default auto)",
    )
    parser.add_argument(
        "--threads",
        type=arguments.count,
        metavar="N",
        help="CPU threads of torch (default: as torch chooses)",
    )


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
        "temperature": evaluator.policy.temperature,
    }
    answer |= _evaluate_methods(evaluator, _case_sets(args, EVALUATED), keys, quiet=args.json)
    if args.json:
        output.say_json(answer)
    return 0


def _show(args: argparse.Namespace) -> int:
    _refuse_wrong_sources(args)
    out, format = arguments.target(_folder(args.run) / "episode", args.out, args.format, FORMATS)
    evaluator = _evaluator(args)
    from rookery.pathfinding.evaluation.case_sets import record_case

    case_set = next(iter(_case_sets(args, SHOWN)))
    answer = record_case(evaluator, case_set, args.case, out, format=format, pace=args.pace)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*picture_line(answer))
    return 0


def _demo(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(DEMO), args.out, None, FORMATS)
    with abrupt_exit.abrupt():
        from rookery.pathfinding.evaluation.case_sets import CaseEvaluator, record_case
        from rookery.pathfinding.evaluation.team_policy import load_packaged_policy

    policy = load_packaged_policy(device=args.device, threads=args.threads)
    evaluator = CaseEvaluator(policy=policy, rules=policy.rules(steps=SHOWN_STEPS), seed=args.seed)
    sample = DEMO_CASES._replace(cases=args.cases)
    answer = _evaluate_methods(
        evaluator, _random_case_sets(sample, args.seed), ["results"], quiet=args.json
    )
    case_set = next(iter(_random_case_sets(SHOWN, args.seed)))
    answer |= record_case(evaluator, case_set, 0, out, format=format, pace=PACE)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*picture_line(answer))
    return 0


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


def _evaluator(args: argparse.Namespace) -> "CaseEvaluator":
    """Loads the policy named on the command line; returns an evaluator of this policy.

    The evaluator has the command line's options, such as step limit and collision rule.
    """
    if args.run != DEMO and not Path(args.run).is_file():
        from rookery.config.load import load_run

        load_run(args.run)  # errors come before torch is imported
    with abrupt_exit.abrupt():
        from rookery.pathfinding.evaluation.case_sets import CaseEvaluator
        from rookery.pathfinding.evaluation.team_policy import load_team_policy
        from rookery.pathfinding.world.rules import Collision

    policy = load_team_policy(
        args.run, checkpoint=args.checkpoint, device=args.device, threads=args.threads
    )
    policy = policy if args.temperature is None else policy.with_temperature(args.temperature)
    rules = policy.rules(steps=args.steps, collision=Collision(args.collision))
    shield = getattr(args, "shield", False)  # `show` has no such flag
    return CaseEvaluator(policy=policy, rules=rules, seed=args.seed or 0, shield=shield)


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
            result = evaluator.evaluate(key, case_set)
            answer[key].append(result._asdict())
            if not quiet:
                output.say(row(result._asdict(), METHOD_NAMES[key] if len(keys) > 1 else ""))
    return answer


def _case_sets(args: argparse.Namespace, usual: RandomCases) -> Iterable["CaseSet"]:
    """Returns the sets of problem instances (map, starts, goals) that command-line flags ask for.

    They are random or from files; `usual` has the default parameters of random ones.
    """
    from rookery.pathfinding.evaluation import case_sets

    if args.cases_file:
        count = getattr(args, "cases", None)  # `show` draws one of all
        return [case_sets.from_file(args.cases_file, agents=args.agents, count=count)]
    if args.map:
        return case_sets.from_map(args.map, args.scen, args.agents or usual.agents)
    chosen = RandomCases(
        args.agents or usual.agents,
        args.size or usual.sizes,
        args.density or usual.densities,
        getattr(args, "cases", None) or usual.cases,
    )
    return _random_case_sets(chosen, args.seed or 0, skip=getattr(args, "case", 0))


def _random_case_sets(chosen: RandomCases, seed: int, skip: int = 0) -> Iterable["CaseSet"]:
    from rookery.pathfinding.evaluation import case_sets

    return case_sets.random_case_sets(
        chosen.cases,
        agents=chosen.agents,
        sizes=chosen.sizes,
        densities=chosen.densities,
        seed=seed,
        skip=skip,
    )


def heading(several: bool) -> str:
    """Returns the header line of the printed evaluation results.

    With `several`, there is a column that names the method: policy, baseline or planner.
    """
    return _aligned(HEAD, "  by" if several else "")


def row(result: Mapping[str, Any], who: str = "") -> str:
    """Returns one line of the printed evaluation results: means over one set of problem instances.

    `who` names the method in the last column; an empty text leaves the column out.
    """
    cells = (
        str(result["agents"]),
        str(result["size"]),
        str(result["cases"]),
        f"{result['success']:.1%}",
        f"{result['individual_success']:.1%}",
        f"{result['mean_length']:.1f}",
        f"{result['sum_of_costs']:.1f}",
    )
    return _aligned(cells, f"  {who}" if who else "")


def _aligned(cells: Sequence[str], end: str) -> str:
    return "".join(f"{cell:>{w}}" for cell, w in zip(cells, WIDTHS, strict=True)) + end


def picture_line(answer: Mapping[str, Any]) -> list[str]:
    """Returns a line that describes an animation file, in a list.

    It names file and size, how many agents are on their goals at the end, and the episode's length.
    """
    home = f"{answer['home']} of {answer['agents']} agents home after {answer['length']} steps"
    return [f"{answer['file']}: {home}, {output.size(answer['bytes'])}"]


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
    wrong = [f"--{name}" for name in drawn if read and getattr(args, name, None) is not None]
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


def device(text: str) -> str:
    """Parses the device that a policy runs on: auto, cpu or cuda:N."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise argparse.ArgumentTypeError(f"needs auto, cpu or cuda:N, got {text!r}")
    return text


def number(text: str) -> int:
    """Parses a command-line argument that is a whole number of at least 0."""
    if (found := arguments.whole(text)) < 0:
        raise argparse.ArgumentTypeError(f"needs a whole number from 0 on, got {text!r}")
    return found


def _case(text: str) -> int:
    """Parses the index of a problem instance, from 0 to `LAST_CASE`.

    It is limited because the random seeds of all instances before it have to be drawn.
    """
    if (case := number(text)) > LAST_CASE:
        raise argparse.ArgumentTypeError(f"needs a whole number from 0 to {LAST_CASE}, got {text}")
    return case


def _one_count(text: str) -> list[int]:
    return [arguments.count(text)]

"""Many agents on a grid, each on its way: judges policies, draws episodes, shows our own."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.loops.trials import Contest, Trial

EXAMPLES = """\
examples:
  rookery pathfinding demo
  rookery pathfinding evaluate runs/a --agents 8,16,32,64 --cases 200 --json
  rookery pathfinding evaluate demo --size 17-21 --density 0.1-0.3 --steps 128 --planner
  rookery pathfinding show runs/a --agents 32 --out episode.svg
"""
SOURCE = "a run folder, a file of `rookery export`, or `demo` for the policy that comes along"
DEMO = "demo"
FORMATS = ("svg", "gif")
COLLISIONS = ("reference", "soft")
SHOWN_STEPS = 128  # of a picture's case
LAST_CASE = 10**6  # that can be shown
SLOWEST, PACE, FASTEST = 0.1, 4.0, 50.0  # steps a second
HOTTEST = 1_000.0  # as good as random
WHO = {"results": "policy", "baseline": "own ways", "planner": "planner"}
HEAD = ("agents", "size", "cases", "success", "individual", "length", "sum of costs")
WIDTHS = (8, 9, 7, 9, 12, 8, 14)


class Drawn(NamedTuple):
    """Cases that are drawn, where nothing else is said."""

    agents: Sequence[int]
    sizes: tuple[int, int]
    densities: tuple[float, float]
    cases: int  # of each number of agents


JUDGED = Drawn((8, 16, 32, 64), (40, 40), (0.3, 0.3), 200)
SHOWN = Drawn((16,), (20, 20), (0.2, 0.2), 1)
SAMPLED = Drawn((8, 16, 32), (20, 20), (0.2, 0.2), 20)


class Verb(NamedTuple):
    """Something that can be done about path finding."""

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
        "--agents", type=arguments.counts, metavar="N,...", help="a row for each; 8,16,32,64"
    )
    drawn.add_argument("--size", type=sizes, metavar="S", help="40, or each in a range: 17-21")
    drawn.add_argument("--density", type=densities, metavar="D", help="0.3, or a range: 0.1-0.3")
    drawn.add_argument(
        "--cases", type=arguments.count, metavar="N", help="of each row; 200, or all of a file"
    )
    _add_rules(parser, steps=256)
    parser.add_argument("--baseline", action="store_true", help="judge own shortest ways as well")
    parser.add_argument("--planner", action="store_true", help="judge a classical planner as well")
    parser.add_argument("--shield", action="store_true", help="settle conflicts before each step")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=SOURCE)
    drawn = _add_cases(parser)
    drawn.add_argument("--agents", type=_just_one, metavar="N", help="16")
    drawn.add_argument("--size", type=sizes, metavar="S", help="20, or drawn from a range: 17-21")
    drawn.add_argument("--density", type=densities, metavar="D", help="0.2, or a range: 0.1-0.3")
    parser.add_argument("--case", type=_case, default=0, metavar="K", help="which one; 0 is first")
    _add_rules(parser, steps=SHOWN_STEPS)
    parser.add_argument("--out", metavar="FILE", help="default episode.svg")
    parser.add_argument("--format", choices=FORMATS, help="default: what the file's name ends in")
    parser.add_argument(
        "--pace",
        type=arguments.between(SLOWEST, FASTEST),
        default=PACE,
        metavar="P",
        help="steps a second; 4",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="demo.svg", metavar="FILE", help="default demo.svg")
    parser.add_argument("--cases", type=arguments.count, default=20, metavar="N", help="20")
    parser.add_argument("--seed", type=number, default=0, metavar="S", help="of the cases")
    _add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _add_cases(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds where cases may come from, and returns the group for what may be drawn."""
    drawn = parser.add_argument_group("cases that are drawn")
    drawn.add_argument("--seed", type=number, metavar="S", help="the same seed, the same cases; 0")
    read = parser.add_argument_group("cases that are read instead")
    read.add_argument("--cases-file", metavar="F.npz", help="arrays maps, starts and goals")
    read.add_argument("--map", metavar="F.map", help="a map of MovingAI's, with --scen")
    read.add_argument(
        "--scen",
        action="append",
        metavar="F.scen",
        help="its starts and goals, of which the first --agents are taken; may be repeated",
    )
    return drawn


def _add_rules(parser: argparse.ArgumentParser, steps: int) -> None:
    parser.add_argument(
        "--steps", type=arguments.count, default=steps, metavar="N", help=f"of a case; {steps}"
    )
    parser.add_argument(
        "--collision", choices=COLLISIONS, default="reference", help="the rule; reference"
    )
    parser.add_argument(
        "--temperature",
        type=arguments.between(0.0, HOTTEST),
        metavar="T",
        help="of the draws of actions; 0: always the best; default: as it was trained",
    )
    parser.add_argument(
        "--checkpoint",
        type=arguments.checkpoint,
        default="best",
        metavar="WHICH",
        help="best (default), last, or the env steps of a checkpoint",
    )
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", type=device, default="auto", help="of the policy: auto (default), cpu or cuda:N"
    )
    parser.add_argument(
        "--threads", type=arguments.count, metavar="N", help="of the CPU; default: as torch has it"
    )


def _evaluate(args: argparse.Namespace) -> int:
    _refuse_wrong_sources(args)
    contest = _contest(args)
    keys = ["results", *(key for key in ("baseline", "planner") if getattr(args, key))]
    answer: dict[str, Any] = {
        "run": args.run,
        "version": contest.squad.version,
        "steps": args.steps,
        "collision": args.collision,
        "shield": args.shield,
        "temperature": contest.squad.temperature,
    }
    answer |= _judged(contest, _trials(args, JUDGED), keys, quiet=args.json)
    if args.json:
        output.say_json(answer)
    return 0


def _show(args: argparse.Namespace) -> int:
    _refuse_wrong_sources(args)
    out, format = arguments.target(_folder(args.run) / "episode", args.out, args.format, FORMATS)
    contest = _contest(args)
    from rookery.loops.trials import film

    trial = next(iter(_trials(args, SHOWN)))
    answer = film(contest, trial, args.case, out, format=format, pace=args.pace)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*picture(answer))
    return 0


def _demo(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(DEMO), args.out, None, FORMATS)
    with signals.abrupt():
        from rookery.loops.squad import packaged
        from rookery.loops.trials import Contest, film

    squad = packaged(device=args.device, threads=args.threads)
    contest = Contest(squad=squad, rules=squad.rules(steps=SHOWN_STEPS), seed=args.seed)
    sample = SAMPLED._replace(cases=args.cases)
    answer = _judged(contest, _draw(sample, args.seed), ["results"], quiet=args.json)
    trial = next(iter(_draw(SHOWN, args.seed)))
    answer |= film(contest, trial, 0, out, format=format, pace=PACE)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*picture(answer))
    return 0


VERBS: dict[str, Verb] = {
    "evaluate": Verb("play cases with a policy and report how they end", _add_evaluate, _evaluate),
    "show": Verb("play one case and draw it, as an SVG that moves or a GIF", _add_show, _show),
    "demo": Verb("judge and draw the policy that comes with the library", _add_demo, _demo),
}


def _contest(args: argparse.Namespace) -> "Contest":
    """Opens the policy and says by which rules it plays."""
    if args.run != DEMO and not Path(args.run).is_file():
        from rookery.config.load import load_run

        load_run(args.run)  # refused before torch has been imported
    with signals.abrupt():
        from rookery.envs.pathfinding.rules import Collision
        from rookery.loops.squad import recruit
        from rookery.loops.trials import Contest

    squad = recruit(args.run, checkpoint=args.checkpoint, device=args.device, threads=args.threads)
    squad = squad if args.temperature is None else squad.at(args.temperature)
    rules = squad.rules(steps=args.steps, collision=Collision(args.collision))
    shield = getattr(args, "shield", False)  # a picture has none
    return Contest(squad=squad, rules=rules, seed=args.seed or 0, shield=shield)


def _folder(run: str) -> Path:
    """Returns where pictures of a policy go: into its run folder, where it has one."""
    from rookery.config.load import RUN_FILE

    return Path(run) if (Path(run) / RUN_FILE).is_file() else Path()


def _judged(
    contest: "Contest", trials: Iterable["Trial"], keys: Sequence[str], *, quiet: bool
) -> dict[str, Any]:
    """Judges everybody on every trial; says each row when it is there, unless it is to be quiet."""
    answer: dict[str, Any] = {key: [] for key in keys}
    if not quiet:
        output.say(heading(len(keys) > 1))
    for trial in trials:
        for key in keys:
            result = contest.judge(key, trial)
            answer[key].append(result._asdict())
            if not quiet:
                output.say(row(result._asdict(), WHO[key] if len(keys) > 1 else ""))
    return answer


def _trials(args: argparse.Namespace, usual: Drawn) -> Iterable["Trial"]:
    """Returns the cases that were asked for."""
    from rookery.loops import trials

    if args.cases_file:
        count = getattr(args, "cases", None)  # a picture is of one of all
        return [trials.from_file(args.cases_file, agents=args.agents, count=count)]
    if args.map:
        return trials.from_map(args.map, args.scen, args.agents or usual.agents)
    chosen = Drawn(
        args.agents or usual.agents,
        args.size or usual.sizes,
        args.density or usual.densities,
        getattr(args, "cases", None) or usual.cases,
    )
    return _draw(chosen, args.seed or 0, skip=getattr(args, "case", 0))


def _draw(chosen: Drawn, seed: int, skip: int = 0) -> Iterable["Trial"]:
    from rookery.loops import trials

    return trials.drawn(
        chosen.cases,
        agents=chosen.agents,
        sizes=chosen.sizes,
        densities=chosen.densities,
        seed=seed,
        skip=skip,
    )


def heading(several: bool) -> str:
    """Returns the head of the table; with who is judged where there are several."""
    return _aligned(HEAD, "  by" if several else "")


def row(result: Mapping[str, Any], who: str = "") -> str:
    """Returns one line of the table."""
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


def picture(answer: Mapping[str, Any]) -> list[str]:
    """Says in one line where the picture is and what it shows."""
    home = f"{answer['home']} of {answer['agents']} agents home after {answer['length']} steps"
    return [f"{answer['file']}: {home}, {output.size(answer['bytes'])}"]


def _refuse_wrong_sources(args: argparse.Namespace) -> None:
    """Refuses flags that mean nothing to the cases that were asked for."""
    if bool(args.map) != bool(args.scen):
        raise ConfigError(
            f"--map is {args.map} and --scen {args.scen}; a map has no starts and goals, and a "
            "scenario has no map: give both, or neither"
        )
    if args.map and args.cases_file:
        raise ConfigError("--cases-file and --map were given; cases come from one place; drop one")
    read = "--cases-file" if args.cases_file else "--map" if args.map else ""
    drawn = ("size", "density", *(("cases",) if args.map else ()))
    wrong = [f"--{name}" for name in drawn if read and getattr(args, name, None) is not None]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)} and {read} were given; the first is for cases that are drawn, the "
            "second reads them; drop one"
        )


def sizes(text: str) -> tuple[int, int]:
    """Reads `40`, or `17-21`: each case has a size of its own then."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 2 <= low <= high:
        raise argparse.ArgumentTypeError(f"needs a size of at least 2, or 17-21, got {text!r}")
    return low, high


def densities(text: str) -> tuple[float, float]:
    """Reads `0.3`, or `0.1-0.3`: each case has a density of its own then."""
    match = re.fullmatch(r"(\d?\.?\d+)(?:-(\d?\.?\d+))?", text)
    low, high = (float(match[1]), float(match[2] or match[1])) if match else (1.0, 1.0)
    if not 0 <= low <= high < 1:
        raise argparse.ArgumentTypeError(
            f"needs a share of blocked cells from 0 to below 1, or 0.1-0.3, got {text!r}"
        )
    return low, high


def device(text: str) -> str:
    """Reads where a policy is to live."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise argparse.ArgumentTypeError(f"needs auto, cpu or cuda:N, got {text!r}")
    return text


def number(text: str) -> int:
    """Reads a whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"needs a whole number from 0 on, got {text!r}")
    return int(text)


def _case(text: str) -> int:
    """Reads which case of a row: those before it are counted through, one by one."""
    if (case := number(text)) > LAST_CASE:
        raise argparse.ArgumentTypeError(f"needs a whole number from 0 to {LAST_CASE}, got {text}")
    return case


def _just_one(text: str) -> list[int]:
    return [arguments.count(text)]

"""Rates the snapshots of a self-play run: all play each other, and random has 0 Elo."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

EXAMPLES = """\
examples:
  rookery ladder runs/a
  rookery ladder runs/a --games 200 --snapshots 20 --out ladder.svg --json
"""
FORMATS = ("svg",)
WHO = ("random", "scripted")  # of whom every player's points are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument(
        "--games", type=even, default=100, metavar="N", help="of each pair, half in each seat; 100"
    )
    parser.add_argument(
        "--snapshots",
        type=arguments.count,
        default=12,
        metavar="N",
        help="at most, spread evenly, the newest always; 12",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the games; 0")
    parser.add_argument("--out", metavar="FILE.svg", help="draw ratings and pay-off matrix")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}; leave it out for 0")
    out = None
    if args.out:
        out, _ = arguments.target(Path("ladder"), args.out, None, FORMATS)
    _refuse_no_run(args.run)
    with signals.abrupt():
        from rookery.loops import ladder, place
        from rookery.report.ladder import write

    if out is not None:
        place.prepare(out, "a picture")
    found = ladder.climb(Path(args.run), games=args.games, seed=args.seed, snapshots=args.snapshots)
    answer = found.answer()
    if out is not None:
        with place.reported(out):
            write(out, found.chart())
        answer["file"] = str(out)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*summary(answer))
    return 0


def summary(answer: Mapping[str, Any]) -> list[str]:
    """Says who is how strong, and who beats whom."""
    from rookery.report.ladder import remarks

    players, circles = answer["players"], answer["cycles"]
    file = [f"{answer['file']}: ratings and pay-off matrix"] if "file" in answer else []
    return [
        f"{answer['game']}: {len(players)} players, {answer['games']} games for each pair, half of "
        "them in each seat",
        *ranking(players),
        "",
        "points of the row against the column, in %",
        *matrix(answer),
        "",
        *remarks(answer["spearman"], circles["cyclic"], circles["triples"]),
        *file,
    ]


def ranking(players: list[dict[str, Any]]) -> list[str]:
    """Returns the table of players, the strongest first."""
    known = [name for name in WHO if any(p["name"] == name for p in players)]
    head = ["place", "name", "Elo", "learner steps", *(f"vs {name}" for name in known), "games"]
    rows = [
        [
            str(player["place"]),
            player["name"],
            f"{player['elo']:.0f} ± {player['deviation']:.0f}",
            "-" if player["learner_steps"] is None else f"{player['learner_steps']:,}",
            *(_percent(player[f"against_{name}"], " %") for name in known),
            f"{player['games']:,}",
        ]
        for player in players
    ]
    return output.table([head, *rows])


def matrix(answer: Mapping[str, Any]) -> list[str]:
    """Returns the pay-off matrix; columns have the places of the rows."""
    players = answer["players"]
    width = max(len(player["name"]) for player in players)
    head = " " * (width + 6) + "".join(f"{player['place']:>5}" for player in players)
    return [head] + [
        f"{player['place']:>4}  {player['name']:{width}}"
        + "".join(f"{_percent(share):>5}" for share in row)
        for player, row in zip(players, answer["payoff"], strict=True)
    ]


def even(text: str) -> int:
    """Reads an even number above 0: both seats are played equally often."""
    if not text.isascii() or not text.isdigit() or int(text) == 0 or int(text) % 2:
        raise argparse.ArgumentTypeError(
            f"needs an even number above 0, half for each seat, got {text!r}"
        )
    return int(text)


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:.0f}{sign}"


def _refuse_no_run(run_dir: str) -> None:
    from rookery.config.load import load_run

    load_run(run_dir)

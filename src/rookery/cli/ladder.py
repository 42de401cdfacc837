"""Rate the weight snapshots of a self-play run by Elo, in a tournament of all pairs.

A snapshot is a copy of the agent's weights that training stored as an opponent. A random player,
which has 0 Elo, and the game's scripted player, if it has one, also take part.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.terminal import abrupt_exit, arguments, output

EXAMPLES = """\
examples:
  rookery ladder runs/a
  rookery ladder runs/a --games 200 --snapshots 20 --out ladder.html --json
"""
FORMATS = ("html",)
BASELINES = ("random", "scripted")  # players against which every player's points are shown


FLAGS = """
--games N  number of games of each pair of players, an even number; each of the two is the first
  player in half of them (default 100)
--snapshots N  maximum number of weight snapshots to rate, evenly spaced over the training and
  including the newest (default 12)
--seed SEED  seed of all random numbers in the games (default 0)
--out FILE.html  HTML page with charts of ratings and pay-off matrix to write (default: none)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_flags(parser, FLAGS, games=even)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    out = None
    if args.out:
        out, _ = arguments.target(Path("ladder"), args.out, None, FORMATS)
    arguments.require_run(args.run)
    with abrupt_exit.abrupt():
        from rookery.selfplay import snapshot_ladder
        from rookery.selfplay.ladder_chart import ladder_page

    if out is not None:
        output.prepare(out, "a page of charts")
    found = snapshot_ladder.climb(
        Path(args.run), games=args.games, seed=args.seed, snapshots=args.snapshots
    )
    answer = found.answer()
    if out is not None:
        output.write(out, "--out", [ladder_page(answer).html()])
        answer["file"] = str(out)
    output.answer(args, answer, summary(answer))
    return 0


def summary(answer: Mapping[str, Any]) -> list[str]:
    """Returns a tournament's ranking and pay-off matrix (points of each pair) as lines of text."""
    from rookery.selfplay.ladder_chart import remarks

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
    """Returns the ranking of a tournament's players as lines of text, the strongest first."""
    known = [name for name in BASELINES if any(p["name"] == name for p in players)]
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
    """Returns the pay-off matrix as lines of text: points of each player against each other.

    Players are numbered by rank.
    """
    players = answer["players"]
    width = max(len(player["name"]) for player in players)
    head = " " * (width + 6) + "".join(f"{player['place']:>5}" for player in players)
    return [head] + [
        f"{player['place']:>4}  {player['name']:{width}}"
        + "".join(f"{_percent(share):>5}" for share in row)
        for player, row in zip(players, answer["payoff"], strict=True)
    ]


def even(text: str) -> int:
    """Parses a command-line value that must be an even number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0 or int(text) % 2:
        raise argparse.ArgumentTypeError(
            f"needs an even number above 0, half for each seat, got {text!r}"
        )
    return int(text)


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:.0f}{sign}"

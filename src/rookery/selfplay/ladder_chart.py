"""Page of a tournament of weight snapshots (past policies of a self-play run).

    ladder_page(ladder.answer()).html()

One chart has Elo ratings over learner steps: each snapshot has an error bar of one standard
deviation, and players that do not learn are horizontal lines. The other is the pay-off matrix of
rows against columns in the order of training. With steady progress all cells below the diagonal
have the colour of a win.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.report.charts.options import Goal, goal_line, interval_series, rounded
from rookery.report.charts.page import Chart, Json, Option, Page, Text

LOSS, EVEN, WIN = "#d55e00", "#f7f7f7", "#0072b2"  # colours of 0, half, all points
ROW, AXES = 30, 150  # pixels of the matrix: a player, and what is above and below

Player = Mapping[str, Any]  # its name, rating and learner steps, as in the answer
Answer = Mapping[str, Any]  # the JSON output of `rookery ladder`


def remarks(spearman: float | None, cyclic: int, triples: int) -> list[str]:
    """Returns two lines of text about a tournament of weight snapshots.

    The first is the rank correlation of snapshot number and rating. The second is the number of
    intransitive triples of snapshots (i beats j, j beats k, k beats i), called circles.
    """
    order = "too few snapshots for an order" if spearman is None else f"{spearman:.2f}"
    circles = "no three snapshots to find circles among"
    if triples:
        share = f"{cyclic / triples:.1%}"
        circles = (
            f"{cyclic} of {triples} triples of snapshots beat each other in a circle ({share})"
        )
    return [f"Spearman of snapshot number and rating: {order}", circles]


def ladder_page(answer: Answer) -> Page:
    """Returns a page with a tournament's Elo ratings and pay-off matrix."""
    players, cycles = answer["players"], answer["cycles"]
    said = remarks(answer["spearman"], cycles["cyclic"], cycles["triples"])
    return Page(
        f"{answer['game']}: {len(players)} players, {answer['games']} games for each pair",
        [
            Text("; ".join((answer["run"], *said))),
            Chart(
                "Elo rating over learner steps, with one deviation to each side", ratings(answer)
            ),
            Chart(
                "The row's points against the column, in %",
                payoff(answer),
                AXES + ROW * len(players),
            ),
        ],
    )


def training_order(players: Sequence[Player]) -> list[int]:
    """Returns the indices of players that do not learn, by name, then of snapshots by version."""
    return sorted(range(len(players)), key=lambda i: _age(players[i]))


def ratings(answer: Answer) -> Option:
    """Returns Elo ratings of snapshots over learner steps, and a line for each other player."""
    players = [answer["players"][i] for i in training_order(answer["players"])]
    learned = [player for player in players if player["learner_steps"] is not None]
    way: Json = {
        "type": "line",
        "color": WIN,
        "symbol": "none",
        "lineStyle": {"opacity": 0.35, "width": 1},
        "tooltip": {"show": False},
        "data": [[player["learner_steps"], rounded(player["elo"])] for player in learned],
    }
    data: list[Json] = [
        {"name": f"{p['name']}: {p['elo']:.0f} ± {p['deviation']:.0f}", "value": _ends(p)}
        for p in learned
    ]
    still = [
        goal_line(
            Goal(rounded(player["elo"]), player["name"]), "yAxis", 0.0, rounded(player["elo"])
        )
        for player in players
        if player["learner_steps"] is None
    ]
    return {
        "tooltip": {"formatter": "{b}"},
        "xAxis": {"name": "learner steps"},
        "yAxis": {"name": "Elo"},
        "series": [way, interval_series(data) | {"color": WIN}, *still],
    }


def payoff(answer: Answer) -> Option:
    """Returns the pay-off matrix, with rows and columns in the order of training."""
    order = training_order(answer["players"])
    names = [answer["players"][i]["name"] for i in order]
    shares = [[answer["payoff"][i][j] for j in order] for i in order]
    cells: list[Json] = [
        {
            "name": f"{names[i]} against {names[j]}: {100 * share:.1f} %",
            "value": [j, i, round(100 * share, 1)],
        }
        for i, row in enumerate(shares)
        for j, share in enumerate(row)
        if share is not None
    ]
    return {
        "tooltip": {"formatter": "{b}"},
        "grid": {"right": 120, "bottom": 20},
        "xAxis": {"type": "category", "data": names, "inverse": False, "position": "top"},
        "yAxis": {"type": "category", "data": names},
        "visualMap": {
            "min": 0,
            "max": 100,
            "right": 0,
            "top": "center",
            "inRange": {"color": [LOSS, EVEN, WIN]},
        },
        "series": [
            {"type": "heatmap", "data": cells, "label": {"show": True, "formatter": "{@[2]}"}}
        ],
    }


def _age(player: Player) -> tuple[int, str]:
    return -1 if player["version"] is None else player["version"], player["name"]


def _ends(player: Player) -> Json:
    elo, deviation = player["elo"], player["deviation"]
    ends = (elo, elo - deviation, elo + deviation)
    return [x for end in ends for x in (player["learner_steps"], rounded(end))]

"""Page of a tournament of weight snapshots (past policies of a self-play run).

    ladder_page(chart).html()

One chart has Elo ratings over learner steps: each snapshot has an error bar of one standard
deviation, and players that do not learn are horizontal lines. The other is the pay-off matrix of
rows against columns in the order of training. With steady progress all cells below the diagonal
have the colour of a win.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rookery.report.charts.options import Goal, goal_line, interval_series, rounded
from rookery.report.charts.page import Chart, Json, Option, Page, Text

LOSS, EVEN, WIN = "#d55e00", "#f7f7f7", "#0072b2"  # colours of 0, half, all points
ROW, AXES = 30, 150  # pixels of the matrix: a player, and what is above and below


class ChartEntry(NamedTuple):
    """A player in a tournament's chart: name, rating, and when its weights were stored."""

    name: str
    elo: float
    deviation: float
    steps: int | None  # learner steps; None: does not learn


class LadderChart(NamedTuple):
    """Data of a tournament's chart: players with their ratings, and the pay-off matrix.

    Rows and columns of the matrix are in the order of the players.
    """

    title: str
    entries: Sequence[ChartEntry]
    share: Sequence[Sequence[float | None]]  # [K, K] share of the points that i won against j
    note: str  # text below the chart


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


def ladder_page(chart: LadderChart) -> Page:
    """Returns a page with a tournament's Elo ratings and pay-off matrix."""
    height = AXES + ROW * len(chart.entries)
    return Page(
        chart.title,
        [
            Text(chart.note),
            Chart("Elo rating over learner steps, with one deviation to each side", ratings(chart)),
            Chart("The row's points against the column, in %", payoff(chart), height),
        ],
    )


def ratings(chart: LadderChart) -> Option:
    """Returns Elo ratings of snapshots over learner steps, and a line for each other player."""
    learned = [(entry, entry.steps) for entry in chart.entries if entry.steps is not None]
    way: Json = {
        "type": "line",
        "color": WIN,
        "symbol": "none",
        "lineStyle": {"opacity": 0.35, "width": 1},
        "tooltip": {"show": False},
        "data": [[steps, rounded(entry.elo)] for entry, steps in learned],
    }
    data: list[Json] = [
        {"name": f"{e.name}: {e.elo:.0f} ± {e.deviation:.0f}", "value": _ends(e, steps)}
        for e, steps in learned
    ]
    still = [
        goal_line(Goal(rounded(entry.elo), entry.name), "yAxis", 0.0, rounded(entry.elo))
        for entry in chart.entries
        if entry.steps is None
    ]
    return {
        "tooltip": {"formatter": "{b}"},
        "xAxis": {"name": "learner steps"},
        "yAxis": {"name": "Elo"},
        "series": [way, interval_series(data) | {"color": WIN}, *still],
    }


def payoff(chart: LadderChart) -> Option:
    """Returns the pay-off matrix, with rows and columns in the order of the players."""
    names = [entry.name for entry in chart.entries]
    cells: list[Json] = [
        {
            "name": f"{names[i]} against {names[j]}: {100 * share:.1f} %",
            "value": [j, i, round(100 * share, 1)],
        }
        for i, row in enumerate(chart.share)
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


def _ends(entry: ChartEntry, steps: int) -> Json:
    elos = (entry.elo, entry.elo - entry.deviation, entry.elo + entry.deviation)
    return [x for elo in elos for x in (steps, rounded(elo))]

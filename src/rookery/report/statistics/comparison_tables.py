"""Tables of a comparison's results, for a terminal and for an HTML page."""

from collections.abc import Callable, Sequence

from rookery.report.charts.page import Table
from rookery.report.number_format import count, or_dash, score
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.comparison import ALL, Cell, Comparison, Overall
from rookery.report.statistics.learning_curve import Curve, StepsToThreshold

MARKS = 4  # of a curve


def tables(found: Comparison) -> list[Table]:
    """Returns the tables of each task, then those over all tasks."""
    parts = [part for table in found.tasks for part in _task(table.task, table.cells, found)]
    if found.overall:
        parts += _task(f"{ALL}, normalised", found.overall.cells, found)
        parts.append(_scales(found.overall))
    elif len(found.tasks) > 1 and found.improvement:
        parts.append(_improvements(found))
    return parts


def number(x: float) -> str:
    """Formats a score; a small one keeps two significant digits."""
    return score(x) if abs(x) >= 0.1 else f"{x:.2g}" if x else "0.00"


def ranged(x: Estimate, say: Callable[[float], str] = number) -> str:
    """Formats an estimate with its interval: 3.10 [2.90, 3.40]."""
    if x.low is None or x.high is None:
        return say(x.value)
    return f"{say(x.value)} [{say(x.low)}, {say(x.high)}]"


def steps(reach: StepsToThreshold) -> str:
    """Formats a median of env steps with its interval; `>=` marks a lower bound."""
    texts = [
        "" if value is None else f"{'>= ' if bound else ''}{count(round(value))}"
        for value, bound in zip(reach.env_steps, reach.at_least, strict=True)
    ]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if texts[1] else texts[0]


TABLES: dict[str, dict[str, Callable[[Cell], str]]] = {
    "score": {
        "group": lambda cell: cell.group,
        "runs": lambda cell: str(cell.runs),
        "final score, IQM [95 %]": lambda cell: ranged(cell.final.iqm),
        "median": lambda cell: number(cell.final.median.value),
        "mean": lambda cell: number(cell.final.mean.value),
        "best score, IQM [95 %]": lambda cell: ranged(cell.best.iqm),
    },
    "spread, speed and improvement": {
        "group": lambda cell: cell.group,
        "std [95 %]": lambda cell: or_dash(cell.spread, lambda spread: ranged(spread.std)),
        "IQR [95 %]": lambda cell: or_dash(cell.spread, lambda spread: ranged(spread.iqr)),
        "env steps to threshold": lambda cell: or_dash(cell.reach, steps),
        "reached": lambda cell: or_dash(
            cell.reach, lambda found: f"{found.reached} of {found.runs}"
        ),
        "P(X > {})": lambda cell: or_dash(cell.improvement, chance),
    },
}  # table → column → what it shows of a group; {} is the baseline


def _task(name: str, cells: Sequence[Cell], found: Comparison) -> list[Table]:
    parts = [
        Table(
            f"{name}: {what}",
            [
                [column.format(found.baseline) for column in columns],
                *([show(cell) for show in columns.values()] for cell in cells),
            ],
        )
        for what, columns in TABLES.items()
    ]
    picked = _picked([cell.curve for cell in cells])
    if picked:
        head = ["IQM at env steps", *map(count, picked)]
        rows = [[cell.group, *_at(cell.curve, picked)] for cell in cells]
        parts.append(Table(f"{name}: curve", [head, *rows]))
    return parts


def chance(x: Estimate) -> str:
    """Formats a probability with its interval."""
    return ranged(x, lambda value: f"{value:.2f}")


def _picked(found: Sequence[Curve]) -> list[int]:
    """Returns a few of the curves' env steps, evenly spaced, with the last."""
    marks = max((curve.env_steps for curve in found), key=len)
    few = min(MARKS, len(marks))
    return [marks[(i + 1) * len(marks) // few - 1] for i in range(few)]


def _at(curve: Curve, marks: Sequence[int]) -> list[str]:
    return [or_dash(curve.points.get(mark), ranged) for mark in marks]


def _scales(overall: Overall) -> Table:
    head = ["task", "lowest (0)", "target (1)"]
    rows = [[task, *map(number, scale)] for task, scale in overall.scales.items()]
    return Table("normalised: (score - lowest) / (target - lowest)", [head, *rows])


def _improvements(found: Comparison) -> Table:
    head = ["group", f"P(X > {found.baseline}), averaged over tasks"]
    rows = [[group, chance(estimate)] for group, estimate in found.improvement.items()]
    return Table("improvement, tasks shared with the baseline", [head, *rows])

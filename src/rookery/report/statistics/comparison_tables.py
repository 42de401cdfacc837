"""A comparison as tables of words, for a terminal and for a page."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rookery.report.number_format import count, score
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.comparison import ALL, Cell, Comparison
from rookery.report.statistics.learning_curve import Curve
from rookery.report.statistics.steps_to_threshold import StepsToThreshold

NOTHING = "-"
MARKS = 4  # of a curve


class Section(NamedTuple):
    """A table: its first row is the head, its first column the group."""

    title: str
    rows: list[list[str]]


def sections(found: Comparison) -> list[Section]:
    """Lays out everything that was found, task by task, then over all tasks."""
    parts = [part for table in found.tasks for part in _task(table.task, table.cells, found)]
    if found.overall:
        parts += _task(f"{ALL}, normalised", found.overall.cells, found)
        parts.append(_scales(found))
    elif len(found.tasks) > 1 and found.improvement:
        parts.append(_improvements(found))
    return parts


def number(x: float) -> str:
    """A score, with digits left where it is small."""
    return score(x) if abs(x) >= 0.1 else f"{x:.2g}" if x else "0.00"


def ranged(x: Estimate, say: Callable[[float], str] = number) -> str:
    """Says an estimate and its interval: 3.10 [2.90, 3.40]."""
    if x.low is None or x.high is None:
        return say(x.value)
    return f"{say(x.value)} [{say(x.low)}, {say(x.high)}]"


def steps(reach: StepsToThreshold | None) -> str:
    """Says a median of env steps; `>=` before what is only known to be at least that."""
    if reach is None:
        return NOTHING
    said = [
        "" if value is None else f"{'>= ' if bound else ''}{count(round(value))}"
        for value, bound in zip(reach.env_steps, reach.at_least, strict=True)
    ]
    return f"{said[0]} [{said[1]}, {said[2]}]" if said[1] else said[0]


def _task(name: str, cells: Sequence[Cell], found: Comparison) -> list[Section]:
    tables = [
        Section(f"{name}: score", [_SCORES, *map(_scores, cells)]),
        Section(
            f"{name}: spread, speed and improvement",
            [[*_MORE, f"P(X > {found.baseline})"], *map(_more, cells)],
        ),
    ]
    picked = _picked([cell.curve for cell in cells])
    if picked:
        head = ["IQM at env steps", *map(count, picked)]
        rows = [[cell.group, *_at(cell.curve, picked)] for cell in cells]
        tables.append(Section(f"{name}: curve", [head, *rows]))
    return tables


_SCORES = ["group", "runs", "final IQM [95 %]", "median", "mean", "best IQM [95 %]"]
_MORE = ["group", "std [95 %]", "IQR [95 %]", "env steps to threshold", "reached"]


def _scores(cell: Cell) -> list[str]:
    final = cell.final
    return [
        cell.group,
        str(cell.runs),
        ranged(final.iqm),
        number(final.median.value),
        number(final.mean.value),
        ranged(cell.best.iqm),
    ]


def _more(cell: Cell) -> list[str]:
    spread, reach = cell.spread, cell.reach
    return [
        cell.group,
        ranged(spread.std) if spread else NOTHING,
        ranged(spread.iqr) if spread else NOTHING,
        steps(reach),
        f"{reach.reached} of {reach.runs}" if reach else NOTHING,
        chance(cell.improvement) if cell.improvement else NOTHING,
    ]


def chance(x: Estimate) -> str:
    """Says a probability."""
    return ranged(x, lambda value: f"{value:.2f}")


def _picked(found: Sequence[Curve]) -> list[int]:
    """Chooses a few marks, evenly, the last of them included."""
    marks = max((curve.env_steps for curve in found), key=len)
    few = min(MARKS, len(marks))
    return [marks[(i + 1) * len(marks) // few - 1] for i in range(few)]


def _at(curve: Curve, marks: Sequence[int]) -> list[str]:
    known = dict(zip(curve.env_steps, curve.iqm, strict=True))
    return [ranged(known[mark]) if mark in known else NOTHING for mark in marks]


def _scales(found: Comparison) -> Section:
    scales = found.overall.scales if found.overall else {}
    rows = [[task, number(scale.lowest), number(scale.target)] for task, scale in scales.items()]
    return Section("normalised: (score - lowest) / (target - lowest)", [_SCALE, *rows])


_SCALE = ["task", "lowest (0)", "target (1)"]


def _improvements(found: Comparison) -> Section:
    head = ["group", f"P(X > {found.baseline}), averaged over tasks"]
    rows = [[group, chance(estimate)] for group, estimate in found.improvement.items()]
    return Section("improvement, tasks shared with the baseline", [head, *rows])

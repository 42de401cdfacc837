"""The page of a comparison: curves and intervals of each task, then every number in tables."""

from collections.abc import Mapping, Sequence

from rookery.report.charts.options import Goal, Interval, Look, intervals, lines, looks
from rookery.report.charts.page import Chart, Heading, Page, PagePart, Points, Text
from rookery.report.number_format import counted
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.comparison import ALL, Cell, Comparison, Question
from rookery.report.statistics.comparison_tables import chance, number, ranged, steps, tables


def comparison_page(found: Comparison, question: Question) -> Page:
    """Returns the HTML page of a comparison."""
    styles = looks(found.groups)
    parts: list[PagePart] = [Text(_facts(found, question))]
    if found.notes:
        parts += [Heading("Before you believe it"), Points(found.notes)]
    for table in found.tasks:
        aim = table.threshold
        goal = None if aim is None else Goal(aim, f"threshold {number(aim)}")
        parts += _charts(table.task, str(found.metric), table.cells, found, styles, goal)
    if found.overall:
        name, unit = f"{ALL}, normalised", "normalised score"
        parts += _charts(name, unit, found.overall.cells, found, styles, Goal(1.0, "target"))
    elif len(found.tasks) > 1 and found.improvement:
        parts += [
            Heading("Improvement, averaged over tasks"),
            _chances(found.improvement, found, styles),
        ]
    parts += [Heading("All numbers"), *tables(found)]
    return Page(f"{', '.join(found.groups)}: comparison", parts)


def _facts(found: Comparison, question: Question) -> str:
    runs = sum(cell.runs for table in found.tasks for cell in table.cells)
    return (
        f"{counted(runs, 'run')} in {counted(len(found.groups), 'group')} on "
        f"{counted(len(found.tasks), 'task')}, scored by "
        f"{found.metric}. Lines and dots are interquartile means (IQM) over runs; bands, bars and "
        f"brackets are 95 % percentile intervals of {question.reps:,} stratified bootstrap draws, "
        f"seed {question.seed}. P(X > {found.baseline}) is the chance that a run of the group "
        f"beats one of {found.baseline} on the same task."
    )


def _charts(
    name: str,
    unit: str,
    cells: Sequence[Cell],
    found: Comparison,
    styles: Mapping[str, Look],
    goal: Goal | None,
) -> list[PagePart]:
    curves = {cell.group: cell.curve.points for cell in cells}
    finals = {cell.group: Interval(ranged(cell.final.iqm), cell.final.iqm) for cell in cells}
    parts: list[PagePart] = [
        Heading(name),
        Chart(
            "Score over env steps",
            lines(curves, styles, across="env steps", up=f"{unit}, IQM", goal=goal),
        ),
        intervals("Final score, IQM", finals, styles, across=unit, goal=goal),
    ]
    took = {
        cell.group: Interval(steps(cell.reach), cell.reach.env_steps, any(cell.reach.at_least))
        for cell in cells
        if cell.reach
    }
    if took:
        parts.append(intervals(_caption(cells), took, styles, across="env steps, median"))
    better = {cell.group: cell.improvement for cell in cells if cell.improvement}
    return [*parts, _chances(better, found, styles)] if better else parts


def _caption(cells: Sequence[Cell]) -> str:
    groups = ", ".join(
        f"{cell.group} {cell.reach.reached} of {cell.reach.runs}" for cell in cells if cell.reach
    )
    return (
        f"Env steps to the threshold, median. Reached by: {groups}. A run that did not counts "
        "with its last step; an arrow says that the group may be slower than shown"
    )


def _chances(
    better: Mapping[str, Estimate], found: Comparison, styles: Mapping[str, Look]
) -> Chart:
    return intervals(
        f"Probability of improvement over {found.baseline}",
        {group: Interval(chance(estimate), estimate) for group, estimate in better.items()},
        styles,
        across=f"P(X > {found.baseline})",
        goal=Goal(0.5, "no difference"),
        within=(0.0, 1.0),
    )

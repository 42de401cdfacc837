"""A comparison as one HTML page that needs nothing else: no script, no network."""

from collections.abc import Sequence

from rookery.report.charts import curve_plots
from rookery.report.charts.curve_plots import Goal, Look
from rookery.report.charts.svg import safe
from rookery.report.charts.timeline_page import whole
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.comparison import ALL, Cell, Comparison, Question
from rookery.report.statistics.comparison_tables import Section, number, sections

EVEN = Goal(0.5, "no difference")


def sheet(found: Comparison, question: Question) -> str:
    """Draws what was found: curves and intervals for each task, then every number in tables."""
    title = f"{', '.join(found.groups)}: comparison"
    styles = curve_plots.looks(found.groups)
    parts = [f"<h1>{safe(title)}</h1>", f"<p>{safe(_facts(found, question))}</p>"]
    parts.append(_notes(found.notes))
    for table in found.tasks:
        goal = None if table.threshold is None else _goal(table.threshold)
        parts += _pictures(table.task, str(found.metric), table.cells, found, styles, goal)
    if found.overall:
        name, unit = f"{ALL}, normalised", "normalised score"
        parts += _pictures(name, unit, found.overall.cells, found, styles, Goal(1.0, "target"))
    elif len(found.tasks) > 1 and found.improvement:
        parts += ["<h2>Improvement, averaged over tasks</h2>", _chances(found.improvement, found)]
    parts += ["<h2>All numbers</h2>", *map(_table, sections(found))]
    return whole(title, parts)


def _facts(found: Comparison, question: Question) -> str:
    runs = sum(cell.runs for table in found.tasks for cell in table.cells)
    return (
        f"{runs} runs in {len(found.groups)} groups on {len(found.tasks)} tasks, scored by "
        f"{found.metric}. Lines and dots are interquartile means (IQM) over runs; bands, bars and "
        f"brackets are 95 % percentile intervals of {question.reps:,} stratified bootstrap draws, "
        f"seed {question.seed}. P(X > {found.baseline}) is the chance that a run of the group "
        f"beats one of {found.baseline} on the same task."
    )


def _goal(threshold: float) -> Goal:
    return Goal(threshold, f"threshold {number(threshold)}")


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{safe(note)}</li>" for note in notes)
    return f"<h2>Before you believe it</h2><ul>{items}</ul>" if notes else ""


def _pictures(
    name: str,
    unit: str,
    cells: Sequence[Cell],
    found: Comparison,
    styles: dict[str, Look],
    goal: Goal | None,
) -> list[str]:
    lines = {cell.group: cell.curve for cell in cells}
    finals = {cell.group: cell.final.iqm for cell in cells}
    took = {cell.group: cell.reach.env_steps for cell in cells if cell.reach}
    better = {cell.group: cell.improvement for cell in cells if cell.improvement}
    pictures = [
        f"<h2>{safe(name)}</h2>",
        _figure(
            "Score over env steps",
            curve_plots.curves(
                lines, styles, title=f"{name}: {unit} over env steps", up=f"{unit}, IQM", goal=goal
            ),
        ),
        _figure(
            "Final score, IQM",
            curve_plots.intervals(
                finals, styles, title=f"{name}: final {unit}", across=unit, goal=goal
            ),
        ),
    ]
    if took:
        title = f"{name}: env steps to the threshold"
        late = [cell.group for cell in cells if cell.reach and any(cell.reach.at_least)]
        drawn = curve_plots.intervals(
            took, styles, title=title, across="env steps, median", beyond=late
        )
        pictures.append(_figure(_caption(cells), drawn))
    return [*pictures, _chances(better, found)] if better else pictures


def _caption(cells: Sequence[Cell]) -> str:
    reached = ", ".join(
        f"{cell.group} {cell.reach.reached} of {cell.reach.runs}" for cell in cells if cell.reach
    )
    return (
        f"Env steps to the threshold, median. Reached by: {reached}. A run that did not counts "
        "with its last step; an arrow says that the group may be slower than shown"
    )


def _chances(better: dict[str, Estimate], found: Comparison) -> str:
    label = f"P(X > {found.baseline})"
    styles = curve_plots.looks(found.groups)
    return _figure(
        f"Probability of improvement over {found.baseline}",
        curve_plots.intervals(
            better, styles, title=label, across=label, goal=EVEN, within=(0.0, 1.0)
        ),
    )


def _figure(caption: str, drawn: str) -> str:
    return f"<figure><figcaption>{safe(caption)}</figcaption>{drawn}</figure>"


def _table(section: Section) -> str:
    head, *rows = section.rows
    top = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{safe(row[0])}</th>'
        + "".join(f"<td>{safe(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<h3>{safe(section.title)}</h3><table><tr>{top}</tr>{body}</table>"

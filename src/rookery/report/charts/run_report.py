"""The report of runs: results, curves, machines, settings and faults, as one page."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rookery.config.load import leaves
from rookery.report.charts.options import lines, looks
from rookery.report.charts.page import Chart, Heading, Page, PagePart, Points, Table, Text
from rookery.report.number_format import UNKNOWN, clock, count, or_dash, score
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.run_records import Metric, RunFolder, finite, series

CURVES: dict[str, str] = {
    Metric.EVALUATION: "Score: mean return of evaluation episodes",
    Metric.ROLLOUT: "Return: mean of training episodes",
    "time/fps": "Speed: env steps per second",
    "time/learner_steps_per_s": "Speed: learner steps per second",
}
LOSSES = "train/"  # of these, each metric with `loss` in its name has a chart
COUNTERS = ("env_steps", "learner_steps", "episodes")
FACTS = ("started", "command", "commit", "machine", "python")  # of run.json, and its versions
MOST_FAULTS = 20  # of a run

Facts = Mapping[str, str]  # name → what it is in one run


def run_report(runs: Sequence[RunFolder], unread: Sequence[str] = ()) -> Page:
    """Returns the report of one run, or of several next to each other.

    `unread` says which runs are not in it, and why.
    """
    names = [run.name for run in runs]
    every_fault = [f"{run.name}: {text}" for run in runs for text in faults(run)]
    settings = _side_by_side(
        [{key: _text(value) for key, value in leaves(run.config)} for run in runs]
    )
    differing = [row for row in settings if len(set(row[1:])) > 1]
    parts: list[PagePart] = [
        *([Points(unread)] if unread else []),
        Heading("Results"),
        Table("", [["", *names], *_side_by_side([results(run) for run in runs])]),
        *(_curves(runs) or [Text("No metrics have been logged yet.")]),
        Heading("Machine and versions"),
        Table("", [["", *names], *_side_by_side([machine(run) for run in runs])]),
    ]
    if every_fault:
        parts += [Heading("Faults"), Points(every_fault)]
    parts.append(Heading("Settings"))
    if differing:
        parts.append(Table("Settings that differ", [["setting", *names], *differing]))
    parts.append(Table("All settings", [["setting", *names], *settings]))
    return Page(f"{', '.join(names)}: report", parts)


def machine(run: RunFolder) -> Facts:
    """Returns machine, versions and command of a run from its run.json; `-` if unknown."""
    try:
        about = json.loads((run.folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        about = None
    known = about if isinstance(about, dict) else {}
    command, versions = known.get("command"), known.get("versions")
    facts = {name: known.get(name) for name in FACTS}
    if isinstance(command, list):
        facts["command"] = " ".join(map(str, command))
    facts |= versions if isinstance(versions, dict) else {}
    return {name: or_dash(value, _text) for name, value in facts.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def results(run: RunFolder) -> Facts:
    """Returns the results of a run by name: scores, counters, time, number of faults."""
    scores = list(series(run.entries, Metric.EVALUATION)[0].values())
    walls = [wall for e in run.entries if (wall := finite(e.get("wall_s"))) is not None]
    counts = {name.replace("_", " "): run.last.get(name) for name in COUNTERS}
    return {
        "environment": run.config.env.id,
        "algorithm": run.config.algorithm,
        "seed": str(run.config.run.seed),
        "state": f"stopped ({run.last.get('reason')})" if run.stopped else "not over",
        "best score": or_dash(max(scores, default=None), score),
        "last score": or_dash(scores[-1] if scores else None, score),
        "target": or_dash(run.config.eval.target, score),
        **{name: count(n) if isinstance(n, int) else UNKNOWN for name, n in counts.items()},
        "time": or_dash(max(walls, default=None), clock),
        "faults": str(len(run.warnings)),
    }


def _side_by_side(facts: Sequence[Facts]) -> list[list[str]]:
    """Returns table rows: the name of a fact, then its value in each run."""
    names = dict.fromkeys(name for one in facts for name in one)
    return [[name, *(one.get(name, UNKNOWN) for one in facts)] for name in names]


def _curves(runs: Sequence[RunFolder]) -> list[PagePart]:
    every = [entry["metrics"] for run in runs for entry in run.entries if "metrics" in entry]
    known = dict.fromkeys(
        name for metrics in every if isinstance(metrics, dict) for name in metrics
    )
    losses = {name: f"Loss: {name}" for name in known if name.startswith(LOSSES) and "loss" in name}
    styles = looks([run.name for run in runs])
    charts: list[PagePart] = []
    for name, caption in (CURVES | losses).items():
        points = {run.name: series(run.entries, name)[0] for run in runs}
        drawn = {
            run: {at: Estimate(value) for at, value in found.items()}
            for run, found in points.items()
            if found
        }
        if drawn:
            charts.append(Chart(caption, lines(drawn, styles, across="env steps", up=str(name))))
    return charts


def faults(run: RunFolder) -> list[str]:
    """Returns a sentence for each warning of a run, at most MOST_FAULTS."""
    texts = [
        f"at {count(entry['env_steps'])} env steps, {entry.get('kind')}: {entry.get('message')}"
        for entry in run.warnings[:MOST_FAULTS]
    ]
    more = len(run.warnings) - MOST_FAULTS
    return [*texts, f"and {more} more, in its metrics.jsonl"] if more > 0 else texts

"""The timeline as one HTML page that needs nothing else: no script, no network."""

from collections.abc import Iterable

from rookery.report.charts import gantt
from rookery.report.charts.svg import safe
from rookery.report.charts.timeline_lanes import History, busiest
from rookery.report.metrics.bottleneck import bottleneck
from rookery.report.number_format import clock, count

LEGIBLE = 60  # spans of the fullest lane in a close-up
NOTICE = 0.0005  # shares below are shown as nothing
STYLE = """
body { font: 14px/1.5 system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; color: #222;
  background: #fff; margin: 2em auto; max-width: 1220px; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 1.6em 0 0.4em }
svg { max-width: 100%; height: auto; display: block }
table { border-collapse: collapse } th, td { padding: 0.2em 0.8em; text-align: right }
th:first-child, td:first-child { text-align: left } tr + tr { border-top: 1px solid #ddd }
p, li { max-width: 60em; margin: 0.4em 0 } figure { margin: 1em 0 } figcaption { margin: 0.4em 0 }
"""


def page(name: str, history: History, began: float, ended: float) -> str:
    """Draws a run: all of it, a window, and where that is too full a few moments of it."""
    parts = [
        f"<h1>{safe(name)}</h1>",
        f"<p>{safe(_facts(history))}</p>",
        gantt.legend(),
        "<h2>The whole run</h2>",
        "<p>How each process divided its time; blank is time nobody accounted for.</p>",
        gantt.overview(history, began, ended),
        f"<h2>{safe(_between(began, ended))}</h2>",
        gantt.closeup(history, began, ended),
    ]
    inner = legible(history, began, ended)
    if inner is not None:
        parts += [f"<h2>{safe(_between(*inner))}</h2>", gantt.closeup(history, *inner)]
    parts += ["<h2>Shares of time</h2>", _table(history)]
    return whole(f"{name}: timeline", parts)


def whole(title: str, parts: Iterable[str]) -> str:
    """Makes a page of finished parts."""
    name = f"<title>{safe(title)}</title>"
    head = f'<head><meta charset="utf-8">{name}<style>{STYLE}</style></head>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en">{head}\n<body>\n{body}\n</body></html>\n'


def legible(history: History, began: float, ended: float) -> tuple[float, float] | None:
    """Chooses a part of a window short enough to tell spans apart; none where all of it is."""
    fullest = max(
        sum(span.began < ended and span.ended > began for span in lane.spans)
        for lane in history.lanes
    )
    if fullest <= 2 * LEGIBLE:
        return None
    return busiest(history, began, ended, (ended - began) * LEGIBLE / fullest)


def _facts(history: History) -> str:
    sessions = len(history.sessions)
    dropped = sum(lane.dropped for lane in history.lanes)
    facts = [
        f"{len(history.lanes)} processes",
        f"{clock(history.seconds)} traced" + (f" in {sessions} sessions" if sessions > 1 else ""),
        bottleneck(history.shares, 1.0).sentence,
    ]
    if dropped:
        facts.append(f"{count(dropped)} spans are only in the sums")
    return "; ".join(facts) + "."


def _between(began: float, ended: float) -> str:
    length = ended - began
    shown = f"{length:.1f} s" if length >= 1 else f"{1e3 * length:.3g} ms"
    return f"{shown} from {began:.3f} s"


def _table(history: History) -> str:
    names = [*gantt.COLOURS, "other"]
    head = "".join(f"<th>{safe(name)}</th>" for name in ("process", "seconds", *names))
    rows = [f"<tr>{head}</tr>"]
    for lane in history.lanes:
        shares = lane.shares
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        cells = [safe(lane.process), f"{lane.seconds:.1f}"]
        cells += [_percent(shares.get(name, 0.0)) for name in names]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= NOTICE else ""

"""Chart of the data flow between the processes of a run, with measured rates.

actors --> transport rings --> replay --> learner --> evaluator
   ^                                         |
   +------------- weight store <-------------+
"""

from collections.abc import Sequence
from statistics import fmean

from rookery.event import Activity
from rookery.report.charts.page import Chart, Json
from rookery.report.charts.timeline_lanes import LOOKS, History, Lane
from rookery.report.metrics.bottleneck import EVALUATOR
from rookery.report.number_format import short

MOST = 6  # actors that get a box each
STEP = 80  # pixels from one actor to the next
PROCESS: dict[str, Json] = {"symbol": "circle", "itemStyle": {"color": "#e69f00"}}
STORE: dict[str, Json] = {"symbol": "roundRect", "itemStyle": {"color": "#0072b2"}}
COLUMNS = {
    "actor": (0, PROCESS),
    "ring": (1, STORE),
    "replay": (2, STORE),
    "weights": (2, STORE),
    "learner": (3, PROCESS),
    "evaluator": (4, PROCESS),
}
GRAPH: dict[str, Json] = {
    "type": "graph",
    "coordinateSystem": "cartesian2d",
    "symbolSize": 24,
    "edgeSymbol": ["none", "arrow"],
    "edgeSymbolSize": 9,
    "label": {"show": True, "formatter": "{b}", "position": "bottom", "lineHeight": 15},
    "lineStyle": {"color": "#888", "width": 1.4, "opacity": 1},
}


def flow_chart(history: History) -> Chart:
    """Returns a chart of a run's data flow; rates are means over the whole run."""
    groups = _groups(history)
    middle, floor = (len(groups) - 1) / 2, len(groups)
    learners = [lane for lane in history.lanes if lane.does(Activity.LEARN, Activity.DRAIN)]
    drained = _rate(learners, Activity.DRAIN)
    nodes = [
        _node("replay", middle, "replay", drained and f"{drained} in"),
        _node("weights", floor, "weight store"),
        _node("learner", middle, "learner", _spent(learners)),
    ]
    links = [
        _link("replay", "learner", _rate(learners, Activity.LEARN)),
        _link("learner", "weights", _rate(learners, Activity.PUBLISH), curve=-0.2),
    ]
    for i, group in enumerate(groups):
        actor, ring, several = f"actor{i}", f"ring{i}", len(group) > 1
        name = f"{len(group)} actors" if several else group[0].process
        rings = f"{len(group)} transport rings" if several else "transport ring"
        nodes += [_node(actor, i, name, _spent(group)), _node(ring, i, rings)]
        links.append(_link(actor, ring, _rate(group, Activity.PLAY)))
        links.append(_link(ring, "replay"))
        links.append(_link("weights", actor, "" if i else "weights", curve=0.25))
    for lane in history.lanes:
        if lane.process == EVALUATOR and lane.does(Activity.EVALUATE):
            rate = lane.rates.get(Activity.EVALUATE, 0.0)
            nodes.append(_node("evaluator", middle, EVALUATOR, _spent([lane])))
            links.append(_link("learner", "evaluator", f"{short(60 * rate)} snapshots/min"))
    return Chart(
        f"Rows, batches and versions per second, means over {history.seconds:.0f} s",
        {
            "grid": {"left": 90, "right": 90},
            "xAxis": {"show": False, "min": 0, "max": max(x for x, _ in COLUMNS.values())},
            "yAxis": {"show": False, "min": 0, "max": floor, "inverse": True},
            "series": [GRAPH | {"data": nodes, "links": links}],
        },
        80 + STEP * (1 + len(groups)),
    )


def _groups(history: History) -> list[list[Lane]]:
    """Returns the actors one by one, or as one group if there are more than MOST."""
    actors = [lane for lane in history.lanes if lane.does(Activity.PLAY)]
    return [[lane] for lane in actors] if len(actors) <= MOST else [actors]


def _rate(lanes: Sequence[Lane], activity: Activity) -> str:
    """Returns the amount per second of an activity over all lanes; empty if it is not counted."""
    total = sum(lane.rates.get(activity, 0.0) for lane in lanes)
    return f"{short(total)} {LOOKS[activity].unit}/s" if total else ""


def _spent(lanes: Sequence[Lane]) -> str:
    """Returns the two activities with the largest mean shares of time, as text."""
    means = {name: fmean(lane.shares.get(name, 0.0) for lane in lanes) for name in LOOKS if lanes}
    most = sorted(means, key=means.__getitem__, reverse=True)[:2]
    return ", ".join(f"{name} {100 * means[name]:.0f} %" for name in most if means[name] >= 0.005)


def _node(id: str, y: float, name: str, note: str = "") -> Json:
    x, look = COLUMNS[id.rstrip("0123456789")]
    return {"id": id, "name": f"{name}\n{note}" if note else name, "value": [x, y], **look}


def _link(source: str, target: str, label: str = "", curve: float = 0.0) -> Json:
    return {
        "source": source,
        "target": target,
        "lineStyle": {"curveness": curve},
        "label": {"show": bool(label), "formatter": label, "position": "middle"},
    }

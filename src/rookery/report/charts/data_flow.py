"""Who hands what to whom, and how fast: processes and data edges with measured rates, as SVG.

actors ──▶ transport rings ──▶ replay ──▶ learner ──▶ evaluator
   ▲                                         │
   └───────────────── board ◀────────────────┘
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from rookery.event import Activity
from rookery.report.charts import svg
from rookery.report.charts.timeline_lanes import UNITS, History, Lane
from rookery.report.number_format import short

MOST = 6  # actors that get a box each
WIDTH, TOP, STEP = 1150.0, 36.0, 66.0  # pixels; STEP from one actor to the next
BUS = 16.0  # where the weights go up to the actors
STYLE = (
    ".process { fill: #fff7e6; stroke: #b07800 } .store { fill: #eef5fb; stroke: #0072b2 } "
    ".edge { fill: none; stroke: #444; stroke-width: 1.4; marker-end: url(#head) } "
    ".name { font-weight: 600 } .note { font-size: 11px; fill: #555 } "
    ".rate { font-size: 11px; paint-order: stroke; stroke: #fff; stroke-width: 3px }"
)
HEAD = svg.element(
    "defs",
    svg.element(
        "marker",
        svg.element("path", d="M0 0L8 4L0 8z", fill="#444"),
        id="head",
        viewBox="0 0 8 8",
        refX=8,
        refY=4,
        markerWidth=8,
        markerHeight=8,
        markerUnits="userSpaceOnUse",
        orient="auto",
    ),
)

Point = tuple[float, float]


class Node(NamedTuple):
    """A box: its middle, its size, its words."""

    x: float
    y: float
    width: float
    height: float
    look: str  # process | store
    name: str
    note: str = ""

    @property
    def left(self) -> Point:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def foot(self) -> Point:
        return self.x, self.y + self.height / 2


class Edge(NamedTuple):
    """A line with an arrow at its end, and what goes along it."""

    points: tuple[Point, ...]
    label: str = ""


def flow(name: str, history: History) -> str:
    """Draws a run's data path."""
    groups = _groups(history)
    floor = TOP + STEP * max(1, len(groups))
    middle = (TOP + floor) / 2
    actors = [_actor(group, TOP + STEP * (i + 0.5)) for i, group in enumerate(groups)]
    rings = [_ring(group, actor.y) for group, actor in zip(groups, actors, strict=True)]
    drained = _rate(history.lanes, Activity.DRAIN)
    replay = Node(540.0, middle, 120.0, 48.0, "store", "replay", drained and f"{drained} in")
    board = Node(540.0, floor + 40, 120.0, 40.0, "store", "board")
    learner = _learner(history, middle)
    judge = _judge(history, middle)
    edges = [
        *_played(groups, actors, rings, replay),
        Edge((replay.right, learner.left), _rate(history.lanes, Activity.LEARN)),
        Edge(
            (learner.foot, (learner.x, board.y), board.right),
            _rate(history.lanes, Activity.PUBLISH),
        ),
        *_weights(board, actors),
        *(Edge((learner.right, node.left), _judged(history)) for node in judge),
    ]
    return svg.document(
        WIDTH,
        board.y + 34,
        STYLE,
        HEAD,
        svg.words(20.0, 22.0, f"{name}: means over {history.seconds:.0f} s"),
        *map(_line, edges),
        *map(_box, (*actors, *rings, replay, board, learner, *judge)),
        *map(_label, edges),
    )


def _groups(history: History) -> list[list[Lane]]:
    """Returns the actors one by one, or all of them together where they are many."""
    players = [lane for lane in history.lanes if lane.does(Activity.PLAY)]
    return [[lane] for lane in players] if len(players) <= MOST else [players]


def _actor(group: Sequence[Lane], y: float) -> Node:
    name = f"{len(group)} actors" if len(group) > 1 else group[0].process
    if group[0].does(Activity.LEARN):
        name = f"actor ({name})"
    acting = (Activity.PLAY, Activity.WRITE, Activity.WAIT)
    return Node(130.0, y, 190.0, 48.0, "process", name, _spent(group, acting))


def _ring(group: Sequence[Lane], y: float) -> Node:
    name = f"{len(group)} transport rings" if len(group) > 1 else "transport ring"
    return Node(375.0, y, 130.0, 32.0, "store", name)


def _learner(history: History, y: float) -> Node:
    lanes = [lane for lane in history.lanes if lane.does(Activity.LEARN, Activity.DRAIN)]
    name = _names(lanes) or "learner"
    if any(lane.does(Activity.PLAY) for lane in lanes):
        name = f"learner ({name})"
    learning = (Activity.LEARN, Activity.DRAIN, Activity.PUBLISH, Activity.WAIT)
    return Node(790.0, y, 180.0, 48.0, "process", name, _spent(lanes, learning))


def _judge(history: History, y: float) -> list[Node]:
    """Returns the evaluator's box, none where there was no evaluator."""
    training = (Activity.PLAY, Activity.LEARN, Activity.DRAIN)
    lanes = [
        lane for lane in history.lanes if lane.does(Activity.EVALUATE) and not lane.does(*training)
    ]
    note = _spent(lanes, (Activity.EVALUATE,))
    return [Node(1070.0, y, 150.0, 48.0, "process", _names(lanes), note)] if lanes else []


def _judged(history: History) -> str:
    rate = sum(lane.rates.get(str(Activity.EVALUATE), 0.0) for lane in history.lanes)
    return f"{short(60 * rate)} snapshots/min" if rate else "snapshots"


def _names(lanes: Sequence[Lane]) -> str:
    return ", ".join(lane.process for lane in lanes)


def _played(
    groups: Sequence[Sequence[Lane]], actors: Sequence[Node], rings: Sequence[Node], replay: Node
) -> list[Edge]:
    return [
        edge
        for group, actor, ring in zip(groups, actors, rings, strict=True)
        for edge in (
            Edge((actor.right, ring.left), _rate(group, Activity.PLAY)),
            Edge((ring.right, replay.left)),
        )
    ]


def _weights(board: Node, actors: Sequence[Node]) -> list[Edge]:
    corner = (BUS, board.y)
    return [
        Edge((board.left, corner, (BUS, actor.y), actor.left), "" if i else "weights")
        for i, actor in enumerate(actors)
    ]


def _rate(lanes: Sequence[Lane], activity: Activity) -> str:
    """Says how much of it all lanes together do in a second; nothing where they do not count it."""
    each = [lane.rates.get(str(activity), 0.0) for lane in lanes]
    return f"{short(sum(each))} {UNITS[activity]}/s" if any(each) else ""


def _spent(lanes: Sequence[Lane], activities: Sequence[Activity]) -> str:
    """Says what the lanes do most, on average."""
    means = {
        activity: fmean(lane.shares.get(str(activity), 0.0) for lane in lanes) if lanes else 0.0
        for activity in activities
    }
    most = sorted(means, key=means.__getitem__, reverse=True)[:2]
    return ", ".join(f"{name} {100 * means[name]:.0f} %" for name in most if means[name] >= 0.005)


def _box(node: Node) -> str:
    corner = (node.x - node.width / 2, node.y - node.height / 2)
    frame = svg.element(
        "rect",
        class_=node.look,
        x=corner[0],
        y=corner[1],
        width=node.width,
        height=node.height,
        rx=5 if node.look == "process" else 14,
    )
    y = node.y - 3 if node.note else node.y + 4
    name = svg.words(node.x, y, node.name, most=26, class_="name", text_anchor="middle")
    note = svg.words(node.x, node.y + 14, node.note, class_="note", text_anchor="middle")
    return frame + name + (note if node.note else "")


def _line(edge: Edge) -> str:
    path = "L".join(f"{x:g} {y:g}" for x, y in edge.points)
    return svg.element("path", class_="edge", d=f"M{path}")


def _label(edge: Edge) -> str:
    """Writes above the middle of the longest stretch."""
    if not edge.label:
        return ""
    stretches = zip(edge.points, edge.points[1:], strict=False)
    (x1, y1), (x2, y2) = max(stretches, key=lambda ends: abs(ends[0][0] - ends[1][0]))
    return svg.words(
        (x1 + x2) / 2, (y1 + y2) / 2 - 6, edge.label, class_="rate", text_anchor="middle"
    )

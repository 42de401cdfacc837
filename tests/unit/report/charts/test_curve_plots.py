"""Curves and intervals as pictures: where things are drawn, and how groups are told apart."""

from xml.etree import ElementTree

import pytest

from rookery.report.charts.curve_plots import COLOURS, DASHES, Goal, curves, intervals, looks
from rookery.report.statistics.bootstrap import Estimate
from rookery.report.statistics.learning_curve import Curve

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text, tag):
    return [dict(item.attrib) for item in ElementTree.fromstring(text).iter(f"{SVG}{tag}")]


def rising(*values):
    points = [Estimate(value, value - 1, value + 1) for value in values]
    return Curve([1_000 * k for k in range(1, len(values) + 1)], points, [0] * len(values))


def picture(found, goal=None):
    return curves(found, looks(list(found)), title="t", up="score", goal=goal)


def test_groups_share_no_look_until_there_are_too_many_to_tell_apart():
    groups = [str(i) for i in range(len(COLOURS) * len(DASHES))]

    assert len(set(looks(groups).values())) == len(groups)


def test_higher_scores_are_higher_and_later_ones_further_right():
    dots = drawn(picture({"a": rising(1.0, 2.0, 5.0)}), "circle")[:3]

    across, down = ([float(dot[key]) for dot in dots] for key in ("cx", "cy"))
    assert across == sorted(across)
    assert down == sorted(down, reverse=True)
    assert (down[0] - down[1]) * 3 == pytest.approx(down[1] - down[2], abs=0.05)


def test_a_band_holds_its_curve():
    text = picture({"a": rising(1.0, 2.0)})

    [band] = drawn(text, "polygon")
    heights = [float(point.split(",")[1]) for point in band["points"].split()]
    for dot in drawn(text, "circle")[:2]:
        assert min(heights) < float(dot["cy"]) < max(heights)


@pytest.mark.parametrize("found", [Curve([], [], []), rising(3.0), rising(3.0, 3.0)])
def test_an_empty_and_a_flat_curve_can_be_drawn(found):
    assert drawn(picture({"a": found}, Goal(3.0, "goal")), "line")


def test_an_estimate_without_an_interval_is_a_dot():
    text = intervals({"a": Estimate(2.0, None, None)}, looks(["a"]), title="t", across="x")

    assert len(drawn(text, "circle")) == 1
    assert drawn(text, "path") == []


def test_an_arrow_marks_what_may_lie_further_right():
    one = {"a": Estimate(2.0, 1.0, 3.0), "b": Estimate(2.0, 1.0, 3.0)}

    plain = intervals(one, looks(["a", "b"]), title="t", across="x")
    arrow = intervals(one, looks(["a", "b"]), title="t", across="x", beyond=["b"])

    assert len(drawn(arrow, "path")) == len(drawn(plain, "path")) + 1

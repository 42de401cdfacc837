"""Lines and intervals as options: what is drawn where, and how groups are told apart."""

import pytest

from rookery.report.charts.options import (
    COLOURS,
    DASHES,
    Goal,
    Interval,
    intervals,
    lines,
    looks,
)
from rookery.report.statistics.bootstrap import Estimate


def rising(*values):
    return {1_000.0 * k: Estimate(value, value - 1, value + 1) for k, value in enumerate(values, 1)}


def drawn(found, goal=None):
    return lines(found, looks(list(found)), across="env steps", up="score", goal=goal)["series"]


def test_groups_share_no_look_until_there_are_too_many_to_tell_apart():
    groups = [str(i) for i in range(len(COLOURS) * len(DASHES))]

    assert len({(look.colour, str(look.dash)) for look in looks(groups).values()}) == len(groups)


def test_a_line_has_its_values_and_a_band_its_interval():
    line, band = drawn({"a": rising(1.0, 5.0)})

    assert (line["type"], band["renderItem"]) == ("line", "band")
    assert line["name"] == band["name"] == "a"
    assert line["color"] == band["color"]
    assert line["data"] == [[1_000, 1, 0, 2], [2_000, 5, 4, 6]]
    assert band["data"] == [[1_000, 0, 2], [2_000, 4, 6]]


def test_a_line_without_intervals_has_no_band():
    [line] = drawn({"a": {1.0: Estimate(2.0)}})

    assert line["data"] == [[1.0, 2.0]]
    assert line["encode"]["tooltip"] == [1]


@pytest.mark.parametrize("found", [{}, rising(3.0), rising(3.0, 3.0)])
def test_a_goal_is_a_line_that_lies_within_the_axes(found):
    *_, goal = drawn({"a": found}, Goal(9.0, "goal"))

    assert goal["markLine"]["data"] == [{"yAxis": 9.0}]
    assert goal["markLine"]["label"]["formatter"] == "goal"
    assert goal["data"][0][1] == 9.0


def test_long_lines_are_drawn_without_their_points():
    assert drawn({"a": rising(1.0, 2.0)})[0]["showSymbol"]
    assert not drawn({"a": rising(*map(float, range(100)))})[0]["showSymbol"]


def bars(found, **more):
    return intervals("caption", found, looks(list(found)), across="x", **more).option


def test_an_interval_goes_from_low_to_high_in_the_row_of_its_group():
    option = bars(
        {
            "a": Interval("2", Estimate(2.0, 1.0, 4.0)),
            "b": Interval("3", Estimate(3.0, 3.0, 5.0), True),
        }
    )

    [series] = option["series"]
    assert option["yAxis"]["data"] == ["a", "b"]
    assert [item["value"] for item in series["data"]] == [
        [2.0, 0, 1.0, 0, 4.0, 0, False],
        [3.0, 1, 3.0, 1, 5.0, 1, True],
    ]
    assert series["data"][1]["name"] == "b: 3"


def test_an_estimate_without_an_interval_is_a_dot():
    [series] = bars({"a": Interval("2", Estimate(2.0))})["series"]

    assert series["data"][0]["value"] == [2.0, 0, 2.0, 0, 2.0, 0, False]


def test_a_probability_has_the_whole_axis():
    option = bars({"a": Interval("0.5", Estimate(0.5))}, within=(0.0, 1.0))

    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (0.0, 1.0)

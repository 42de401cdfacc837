"""Ladder charts: every player is shown, and nothing overlaps."""

import re
from xml.etree import ElementTree

import pytest

from rookery.selfplay.ladder_chart import Chart, ChartEntry, colour_of, draw, remarks, write

SVG = "{http://www.w3.org/2000/svg}"


def chart(snapshots: int, *, still: tuple[str, ...] = ("random", "scripted")) -> Chart:
    entries = [ChartEntry(name, 150.0 * i, 20.0 * i, None) for i, name in enumerate(still)]
    entries += [
        ChartEntry(f"v{400 * i}", 100.0 * i, 25.0, 400 * i) for i in range(1, snapshots + 1)
    ]
    size = len(entries)
    share = [
        [None if i == j else 0.5 + 0.5 * (i - j) / size for j in range(size)] for i in range(size)
    ]
    return Chart("heaps: <snapshots> & more", entries, share, "a note")


def parsed(found: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(draw(found))


def texts(found: Chart) -> list[str]:
    return [element.text or "" for element in parsed(found).iter(f"{SVG}text")]


def test_every_player_has_a_row_and_a_column():
    said = texts(chart(5))

    for name in ("v400", "v2000"):
        assert said.count(name) == 2
    assert said.count("random") == 3  # and its line's name


def test_every_pair_has_its_points_and_the_diagonal_none():
    found = chart(3)
    root = parsed(found)

    numbers = [e for e in root.iter(f"{SVG}text") if "share" in (e.get("class") or "")]
    assert len(numbers) == 5 * 4
    assert len([e for e in root.iter(f"{SVG}rect") if e.get("class") == "self"]) == 5
    shares = [share for row in found.share for share in row if share is not None]
    assert [e.text for e in numbers] == [f"{100 * share:.0f}" for share in shares]


def test_a_bar_is_one_deviation_to_each_side():
    """Elo is linear in pixels: the bar of 25 is a quarter of the 100 between two snapshots."""
    root = parsed(chart(3))
    dots = [float(e.get("cy") or 0) for e in root.iter(f"{SVG}circle")]
    bars = [e.get("d") or "" for e in root.iter(f"{SVG}path") if e.get("class") == "bar"]

    step = dots[0] - dots[1]
    top, bottom = map(float, re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", bars[0])[0])
    assert dots[0] - top == pytest.approx(step / 4, abs=0.2)
    assert bottom - dots[0] == pytest.approx(step / 4, abs=0.2)


def test_more_training_is_further_right():
    dots = [float(e.get("cx") or 0) for e in parsed(chart(4)).iter(f"{SVG}circle")]

    assert dots == sorted(dots)
    assert len(set(dots)) == 4


@pytest.mark.parametrize("snapshots", [1, 2, 12, 40])
def test_nothing_is_outside_of_the_picture(snapshots):
    root = parsed(chart(snapshots))
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)

    for element in root.iter():
        for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(element.get(name) or 0) <= most
    boxes = [e for e in root.iter(f"{SVG}rect") if e.get("class") != "card"]
    assert max(float(e.get("x") or 0) + float(e.get("width") or 0) for e in boxes) <= width
    assert max(float(e.get("y") or 0) + float(e.get("height") or 0) for e in boxes) <= height - 20


def test_names_of_equal_anchors_stand_apart():
    still = [ChartEntry("random", 0.0, 0.0, None), ChartEntry("scripted", 1.0, 9.0, None)]
    level = chart(2)._replace(entries=[*still, *chart(2).entries[2:]])
    labels = [e for e in parsed(level).iter(f"{SVG}text") if "fill" in (e.get("style") or "")]
    low, high = (float(e.get("y") or 0) for e in labels)

    assert low - high >= 14


def test_a_ladder_of_one_can_be_drawn():
    assert "v400" in texts(chart(1, still=("random",)))


def test_words_are_escaped():
    assert "heaps: <snapshots> & more" in texts(chart(2))


def test_colours_go_from_one_hue_over_white_to_another():
    assert colour_of(0.5) == "#f7f7f7"
    assert colour_of(0.0) == "#d55e00"
    assert colour_of(1.0) == "#0072b2"


def test_remarks_say_what_there_is_to_say():
    assert remarks(0.943, 2, 220) == [
        "Spearman of snapshot number and rating: 0.94",
        "2 of 220 triples of snapshots beat each other in a circle (0.9%)",
    ]
    assert remarks(None, 0, 0) == [
        "Spearman of snapshot number and rating: too few snapshots for an order",
        "no three snapshots to find circles among",
    ]


def test_the_file_is_the_drawing(tmp_path):
    write(tmp_path / "ladder.svg", chart(2))

    assert (tmp_path / "ladder.svg").read_text().strip() == draw(chart(2))

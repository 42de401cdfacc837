"""Maps and cases from text: what is read, and what is said of what cannot be."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.world.map_text import (
    as_movingai,
    as_pogema,
    parse,
    read_map,
    read_scenario,
)

MAP = "type octile\nheight 2\nwidth 4\nmap\n.GST\n@OW.\n"
WIDE = "type octile\nheight 2\nwidth 4\nmap\n....\n.@..\n"
HEAD = "version 1\n"
ROWS = (
    "0\twide.map\t4\t2\t0\t0\t3\t1\t4\n"  # x 0, y 0 to x 3, y 1
    "1\twide.map\t4\t2\t2\t1\t0\t1\t3.41421356\n"
    "9\twide.map\t4\t2\t3\t0\t1\t0\t2\n"
)


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def scenario(write):
    """Reads two agents of a scenario on the wide map."""

    def scenario(text, agents=2):
        blocked = read_map(write("wide.map", WIDE))
        return read_scenario(write("wide.scen", text), blocked, agents=agents)

    return scenario


def test_terrain_that_can_be_walked_on_is_free(write):
    assert read_map(write("a.map", MAP)).tolist() == [[0, 0, 0, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    "text",
    [
        MAP.replace("\n", "\r\n"),
        MAP + "\n\n",
        MAP.replace("height 2\nwidth 4", "width 4\nheight 2"),
    ],
)
def test_a_map_is_the_same_however_its_lines_end_and_its_sizes_are_ordered(write, text):
    assert read_map(write("a.map", text)).tolist() == read_map(write("b.map", MAP)).tolist()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must begin with the lines type octile, height H, width W and map, got nothing"),
        (MAP.replace("type octile\n", ""), "must begin with the lines"),
        (MAP.replace("octile", "hex"), r"a\.map:1: a map of type octile is needed, got type hex"),
        (MAP.replace("height 2", "height two"), r"a\.map:2: height must be a whole number"),
        (MAP.replace("height 2", "height 3"), "has 2 rows of cells but its header says height 3"),
        (MAP.replace("GST", "GSTT"), r"a\.map:5: 5 cells, but the map is 4 wide"),
        (MAP.replace("OW", "O?"), r"a\.map:6: '\?' at column 2 is not a cell"),
        (MAP[: MAP.index(".GST")], "the map has no cells"),
        ("\u00e9", "cannot be read"),
    ],
)
def test_a_map_that_is_wrong_is_refused_with_its_line(write, text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_map(write("a.map", text))


def test_a_map_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.map cannot be read"):
        read_map(tmp_path / "gone.map")


def test_a_scenario_counts_x_to_the_right_and_y_down(scenario):
    cases = scenario(HEAD + ROWS)

    assert cases.maps.tolist() == [[[0, 0, 0, 0], [0, 1, 0, 0]]]
    assert cases.starts.tolist() == [[[0, 0], [1, 2]]]
    assert cases.goals.tolist() == [[[1, 3], [1, 0]]]


@pytest.mark.parametrize("head", ["version 1\n", "version 1.0\n", "version  1 \r\n"])
def test_only_the_rows_that_are_asked_for_are_read(scenario, head):
    assert scenario(head + ROWS + "nonsense\n", agents=3).starts.shape == (1, 3, 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must begin with 'version 1', but it is empty"),
        (ROWS, "must begin with 'version 1', but it begins with '0"),
        (
            HEAD + ROWS.splitlines()[0],
            "has 1 rows, one for each agent, but 2 agents were requested",
        ),
        (HEAD + ROWS.replace("\t4\n", "\n"), r"wide\.scen:2: 8 fields, but a row has nine"),
        (HEAD + ROWS.replace("2\t1\t0", "2.5\t1\t0"), r"wide\.scen:3: a field must be a whole"),
        (HEAD + ROWS.replace("4\t2\t2", "5\t2\t2"), r"wide\.scen:3 is for a map of 5 x 2 cells"),
        (HEAD + ROWS.replace("1\twide", "1\thigh"), r"wide\.scen:3 is for the map high\.map"),
        (
            HEAD + ROWS.replace("2\t1\t0", "1\t1\t0"),
            r":3: '1 wide.map 4 2 1 1 .* starts or ends on a blocked cell",
        ),
        (
            HEAD + ROWS.replace("3\t1\t4", "1\t1\t4"),
            r":2: '0 wide.map 4 2 0 0 1 1 .* starts or ends on a blocked cell",
        ),
        (HEAD + ROWS.replace("3\t1\t4", "1\t2\t4"), r":2: .*0 0 1 2 .* starts or ends outside"),
        (
            HEAD + ROWS.replace("2\t1\t0\t1", "0\t0\t0\t1"),
            r":3: .* has the start or goal of another",
        ),
        (
            HEAD + ROWS.replace("2\t1\t0\t1", "2\t1\t3\t1"),
            r":3: .* has the start or goal of another",
        ),
    ],
)
def test_a_scenario_that_is_wrong_is_refused_with_its_line(scenario, text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        scenario(text)


def test_letters_are_starts_and_their_capitals_targets():
    cases = parse(
        """
        b.#A
        .a.B
        """
    )

    assert cases.maps.tolist() == [[[0, 0, 1, 0], [0, 0, 0, 0]]]
    assert cases.starts.tolist() == [[[1, 1], [0, 0]]]  # a, b
    assert cases.goals.tolist() == [[[0, 3], [1, 3]]]


def test_agents_beside_a_map_are_rows_first():
    cases = parse("..#.\n@$!.", agents_xy=[(0, 3), [1, 0]], targets_xy=np.array([[1, 3], [0, 1]]))

    assert cases.maps.tolist() == [[[0, 0, 1, 0], [0, 0, 0, 0]]]
    assert cases.starts.tolist() == [[[0, 3], [1, 0]]]
    assert cases.goals.tolist() == [[[1, 3], [0, 1]]]


@pytest.mark.parametrize(
    ("text", "beside", "complaint"),
    [
        ("a.A\n..", {}, "line 2 of the map: 2 cells, but the map is 3 wide"),
        ("a.A\n.%.", {}, "line 2 of the map: '%' at column 1 is not a cell"),
        ("a.A\n.a.", {}, "line 2 of the map: there is a second 'a'"),
        ("a.A\nb.c", {}, "the map has a start or a target only for the letters bc"),
        ("a.A\n.@.", {}, "both letters and marks"),
        ("...", {}, "the map has no agents"),
        ("", {}, "the map has no cells"),
        ("a.A", {"agents_xy": [(0, 0)], "targets_xy": [(0, 1)]}, "both by letters .* and by"),
        ("...", {"agents_xy": [(0, 0)]}, "only one of agents_xy and targets_xy"),
        ("...", {"agents_xy": [(0, 0)], "targets_xy": [(1, 0)]}, r"targets_xy\[0\] must be a row"),
        ("...", {"agents_xy": [(0, -1)], "targets_xy": [(0, 0)]}, r"agents_xy\[0\] must be a row"),
        ("..#", {"agents_xy": [(0, 0)], "targets_xy": [(0, 2)]}, "agent 0: .* blocked cell"),
        ("..", {"agents_xy": [(0, 0)], "targets_xy": [(0, 0), (0, 1)]}, r"starts and goals \[C, N"),
    ],
)
def test_a_drawing_that_is_wrong_is_refused(text, beside, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse(text, **beside)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (9, 2)])
def test_a_map_that_is_written_is_read_back(write, shape):
    blocked = np.random.default_rng(5).integers(2, size=shape, dtype=np.uint8)
    blocked[0, 0] = 0

    assert np.array_equal(read_map(write("a.map", as_movingai(blocked))), blocked)
    drawn = parse(as_pogema(blocked), agents_xy=[(0, 0)], targets_xy=[(0, 0)])
    assert np.array_equal(drawn.maps[0], blocked)

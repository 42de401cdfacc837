"""Moving pictures of an episode on a grid: what is in them, and where."""

from xml.etree import ElementTree

import numpy as np
import pytest

from rookery.pathfinding.pictures import episode_gif, episode_svg
from rookery.pathfinding.pictures.episode_svg import RecordedEpisode, captions, pairs, runs
from rookery.pathfinding.world.world_image import colour

SVG = "{http://www.w3.org/2000/svg}"
ABSENT = [-1, -1]


def episode(agents=3, steps=4, size=6, links=None):
    """Agents that go down side by side, each in a column of its own, to the last row."""
    places = np.array([[[t, i] for i in range(agents)] for t in range(steps + 1)])
    blocked = np.zeros((size, size), dtype=np.uint8)
    blocked[0, size - 1] = 1
    return RecordedEpisode(blocked, places[-1].copy(), places, links)


def parsed(shown):
    return ElementTree.fromstring(episode_svg.draw(shown))


def within(root, group):
    return root.findall(f".//{SVG}g[@class='{group}']/{SVG}circle")


def test_a_picture_is_xml_with_a_disc_and_a_ring_of_one_colour_for_each_agent():
    root = parsed(episode(agents=5))

    discs, rings = within(root, "disc"), within(root, "ring")
    assert len(discs) == len(rings) == 5
    assert [disc.get("fill") for disc in discs] == [ring.get("stroke") for ring in rings]
    assert len({disc.get("fill") for disc in discs}) == 5


def test_a_disc_is_at_each_step_where_its_agent_is():
    disc = within(parsed(episode(agents=2, steps=3)), "disc")[1]

    stops = disc.find(f"{SVG}animateTransform").get("values").split(";")
    assert stops == ["1 0", "1 1", "1 2", *["1 3"] * (1 + episode_svg.REST)]  # column, row


def test_a_round_lasts_as_long_as_its_steps_and_the_rest():
    shown = ElementTree.fromstring(episode_svg.draw(episode(steps=4), pace=2.0))

    lasts = {motion.get("dur") for motion in shown.iter() if motion.get("dur")}
    assert lasts == {f"{(4 + episode_svg.REST) / 2:.3f}s"}


def test_absent_agents_are_not_drawn():
    shown = episode()
    shown.goals[1], shown.places[:, 1] = ABSENT, ABSENT

    root = parsed(shown)

    assert len(within(root, "disc")) == len(within(root, "ring")) == 2
    assert captions(shown)[0] == "step 0, 0 of 2 home"


def test_the_caption_counts_steps_and_who_is_home():
    assert captions(episode(agents=3, steps=2)) == [
        "step 0, 0 of 3 home",
        "step 1, 0 of 3 home",
        "all 3 home after 2 steps",
    ]


def test_one_caption_is_seen_at_a_time():
    texts = parsed(episode(steps=2)).findall(f"{SVG}text")

    shown = [text.find(f"{SVG}animate") for text in texts]
    first, second = f"{1 / 8:.5f}".rstrip("0"), f"{2 / 8:.5f}".rstrip("0")
    assert [(a.get("values"), a.get("keyTimes")) for a in shown] == [
        ("visible;hidden", f"0;{first}"),
        ("hidden;visible;hidden", f"0;{first};{second}"),
        ("hidden;visible", f"0;{second}"),
    ]


def test_two_who_talk_are_one_line_that_moves_with_them():
    links = np.full((2, 3, 2), -1)
    links[0, 0] = [0, 1]  # itself, and its neighbour
    links[0, 1] = [1, 0]

    path = parsed(episode(steps=2, links=links)).find(f".//{SVG}path[@class='talk']")

    lines = path.find(f"{SVG}animate").get("values").split(";")
    hidden = "M0 0L0 0"
    assert lines == ["M0 0L1 0", "M0 1L1 1", *[hidden] * 4]


def test_the_lines_of_every_moment_are_equally_many():
    rng = np.random.default_rng(0)
    links = rng.integers(-1, 3, (6, 3, 4))

    path = parsed(episode(steps=6, size=8, links=links)).find(f".//{SVG}path[@class='talk']")

    motion = path.find(f"{SVG}animate")
    lines, times = motion.get("values").split(";"), motion.get("keyTimes").split(";")
    assert len({line.count("M") for line in lines}) == 1
    assert len(lines) == len(times)
    assert sorted(map(float, times)) == list(map(float, times))
    assert (times[0], times[-1]) == ("0", "1")


def test_no_edges_are_drawn_without_communication():
    quiet = np.full((4, 3, 2), -1)

    assert "talk" not in {e.get("class") for e in parsed(episode(links=quiet)).iter()}


def test_edges_are_undirected_and_never_from_an_agent_to_itself():
    links = np.array([[0, 1, 2], [1, 0, -1], [2, -1, -1]])

    assert pairs(links) == [(0, 1), (0, 2)]


@pytest.mark.parametrize("density", [0.0, 0.3, 0.8, 1.0])
def test_runs_cover_the_obstacles_and_nothing_else(density):
    blocked = (np.random.default_rng(1).random((9, 7)) < density).astype(np.uint8)

    covered = np.zeros_like(blocked)
    for row, column, length in runs(blocked):
        covered[row, column : column + length] += 1

    assert np.array_equal(covered, blocked)


def test_obstacles_side_by_side_are_one_run():
    assert list(runs(np.ones((1, 3), dtype=np.uint8))) == [(0, 0, 3)]


def test_many_colours_all_differ():
    assert len({colour(i) for i in range(128)}) == 128


def test_a_large_episode_stays_below_two_megabytes():
    rng = np.random.default_rng(0)
    places = rng.integers(10, 40, (129, 64, 2))
    links = rng.integers(0, 64, (128, 64, 4))
    shown = RecordedEpisode(np.ones((40, 40), dtype=np.uint8), places[-1], places, links)

    assert len(episode_svg.draw(shown)) < 2_000_000


def test_an_episode_without_a_step_can_be_drawn():
    shown = episode(steps=0)

    assert captions(shown) == ["all 3 home after 0 steps"]
    assert len(within(parsed(shown), "disc")) == 3


def test_frames_of_a_gif_show_the_agents_at_each_step():
    shown = episode(agents=1, steps=1, size=4)

    drawn = episode_gif.frames(shown)

    assert len(drawn) == 2 + episode_svg.REST
    assert {frame.shape for frame in drawn} == {(480, 480, 3)}
    cells = [(60, 60), (180, 60)]  # the middles of the first two cells of the first column
    for frame, (here, other) in zip(drawn, (cells, cells[::-1]), strict=False):
        assert tuple(frame[here]) == colour(0)
        assert tuple(frame[other]) != colour(0)


def test_frames_of_a_large_map_are_no_larger():
    shown = RecordedEpisode(np.zeros((700, 2)), np.zeros((1, 2), int), np.zeros((2, 1, 2), int))

    assert {frame.shape for frame in episode_gif.frames(shown)} == {(700, 2, 3)}

"""Ladder charts: every player is shown, with its rating and its points against each other."""

import pytest

from page_parts import PageParser
from rookery.selfplay.ladder_chart import ladder_page, payoff, ratings, remarks, training_order


def player(name, elo, deviation, version):
    return {
        "name": name,
        "elo": elo,
        "deviation": deviation,
        "version": version,
        "learner_steps": version,
    }


def answer(snapshots, *, still=("random", "scripted")):
    """The answer of a tournament whose players are named from the strongest to the weakest."""
    players = [player(f"v{400 * i}", 100.0 * i, 25.0, 400 * i) for i in range(snapshots, 0, -1)]
    players += [player(name, 150.0 * i, 20.0 * i, None) for i, name in enumerate(still)]
    size = len(players)
    return {
        "run": "runs/a <b>",
        "game": "heaps: <snapshots> & more",
        "games": 100,
        "players": players,
        "payoff": [
            [None if i == j else 0.5 + 0.5 * (j - i) / size for j in range(size)]
            for i in range(size)
        ],
        "spearman": 1.0,
        "cycles": {"cyclic": 0, "triples": 1, "share": 0.0},
    }


def test_players_are_in_the_order_of_training():
    found = answer(3)

    names = [found["players"][i]["name"] for i in training_order(found["players"])]
    assert names == ["random", "scripted", "v400", "v800", "v1200"]
    assert payoff(found)["xAxis"]["data"] == names


def test_every_player_has_a_row_and_a_column():
    option = payoff(answer(2))

    names = ["random", "scripted", "v400", "v800"]
    assert option["xAxis"]["data"] == option["yAxis"]["data"] == names


def test_every_pair_has_its_points_and_the_diagonal_none():
    found = answer(3)
    order = training_order(found["players"])
    [series] = payoff(found)["series"]

    shown = {(row, column): share for column, row, share in (c["value"] for c in series["data"])}
    assert len(shown) == 5 * 4
    for (row, column), share in shown.items():
        known = found["payoff"][order[row]][order[column]]
        assert known is not None
        assert share == pytest.approx(100 * known, abs=0.05)


def test_a_bar_is_one_deviation_to_each_side_at_the_snapshot_s_training():
    _, bars, *_ = ratings(answer(3))["series"]

    assert [item["value"] for item in bars["data"]] == [
        [400 * i, 100.0 * i, 400 * i, 100.0 * i - 25, 400 * i, 100.0 * i + 25] for i in (1, 2, 3)
    ]


def test_players_that_do_not_learn_are_lines_with_their_names():
    _, _, *still = ratings(answer(2))["series"]

    assert [line["markLine"]["data"] for line in still] == [[{"yAxis": 0.0}], [{"yAxis": 150.0}]]
    names = [line["markLine"]["label"]["formatter"] for line in still]
    assert names == ["random", "scripted"]


@pytest.mark.parametrize("snapshots", [1, 2, 12, 40])
def test_a_ladder_of_any_length_is_a_page(snapshots):
    page = PageParser(ladder_page(answer(snapshots, still=("random",))).html())

    assert len(page.options) == 2
    players = f"{snapshots + 1} players, 100 games for each pair"
    assert f"heaps: <snapshots> & more: {players}" in page.words
    note = "runs/a <b>; Spearman of snapshot number and rating: 1.00; 0 of 1 triples"
    assert any(words.startswith(note) for words in page.words)


def test_remarks_say_what_there_is_to_say():
    assert remarks(0.943, 2, 220) == [
        "Spearman of snapshot number and rating: 0.94",
        "2 of 220 triples of snapshots beat each other in a circle (0.9%)",
    ]
    assert remarks(None, 0, 0) == [
        "Spearman of snapshot number and rating: too few snapshots for an order",
        "no three snapshots to find circles among",
    ]

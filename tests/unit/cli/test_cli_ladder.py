"""What a ladder says of results that are known: places, points, order and circles."""

import json
from pathlib import Path

import numpy as np
import pytest

from rookery.cli import ladder as command
from rookery.cli.main import main
from rookery.selfplay import snapshot_ladder as ladders
from rookery.selfplay.ladder_chart import payoff, training_order
from rookery.selfplay.rating import Results
from rookery.selfplay.snapshot_ladder import Ladder, picked, spread
from rookery.selfplay.snapshot_players import PolicySnapshot

NAMES = ("random", "scripted", "v10", "v20", "v30")


def snapshot(version: int) -> PolicySnapshot:
    return PolicySnapshot(f"v{version}", version, 100 * version, 1000 * version, dict)


def ladder(above: dict[tuple[int, int], float], names: tuple[str, ...] = NAMES) -> Ladder:
    """Everybody beats whoever comes before by 80 to 20, but for what is given: points of i."""
    count = len(names)
    wins = 20.0 * np.triu(np.ones((count, count)), 1) + 80.0 * np.tril(np.ones((count, count)), -1)
    for (i, j), points in above.items():
        wins[i, j], wins[j, i] = points, 100.0 - points
    learned = tuple(snapshot(int(name[1:])) for name in names if name.startswith("v"))
    results = Results(names, wins, 100.0 * (1 - np.eye(count)))
    return Ladder("runs/a", "heaps", 100, 7, learned, results)


def test_players_come_from_the_strongest_down():
    answer = ladder({}).answer()

    assert [p["name"] for p in answer["players"]] == list(NAMES[::-1])
    assert [p["place"] for p in answer["players"]] == [1, 2, 3, 4, 5]
    assert answer["players"][-1]["elo"] == answer["players"][-1]["deviation"] == 0.0


def test_a_player_is_told_with_its_training_and_its_points():
    best = ladder({}).answer()["players"][0]

    assert best["version"] == 30
    assert (best["learner_steps"], best["env_steps"]) == (3000, 30_000)
    assert (best["against_random"], best["against_scripted"]) == (0.8, 0.8)
    assert best["games"] == 400


def test_those_who_do_not_learn_have_no_training_and_no_points_against_themselves():
    random = ladder({}).answer()["players"][-1]

    assert random["version"] is random["learner_steps"] is random["env_steps"] is None
    assert random["against_random"] is None
    assert random["against_scripted"] == 0.2


def test_the_matrix_is_in_the_order_of_the_players():
    answer = ladder({(0, 4): 5.0}).answer()

    assert answer["payoff"][0] == [None, 0.8, 0.8, 0.8, 0.95]
    assert answer["payoff"][4] == [0.05, 0.2, 0.2, 0.2, None]


def test_without_a_scripted_player_no_points_against_one_are_shown():
    answer = ladder({}, ("random", "v10", "v20")).answer()

    assert "against_scripted" not in answer["players"][0]
    assert answer["spearman"] == pytest.approx(1.0)


def test_the_order_is_that_of_snapshots_alone():
    """Scripted beats all snapshots, which is no reason for them not to be in order."""
    strong = ladder({(1, i): 95.0 for i in (2, 3, 4)})

    assert strong.spearman == pytest.approx(1.0)
    assert strong.answer()["players"][0]["name"] == "scripted"


def test_a_circle_of_snapshots_is_found():
    circle = ladder({(2, 4): 70.0}).answer()

    assert circle["cycles"] == {"cyclic": 1, "triples": 1, "share": 1.0}
    assert circle["sure_cycles"]["cyclic"] == 1
    assert ladder({(2, 4): 55.0}).answer()["sure_cycles"]["cyclic"] == 0


def test_one_snapshot_has_no_order():
    assert ladder({}, ("random", "v10")).answer()["spearman"] is None


def test_the_answer_is_json():
    answer = ladder({}).answer()

    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_the_picture_is_in_the_order_of_training():
    answer = ladder({}).answer()
    matrix = payoff(answer)

    assert matrix["yAxis"]["data"] == list(NAMES)
    assert [4, 0, 20.0] in [cell["value"] for cell in matrix["series"][0]["data"]]
    steps = [answer["players"][i]["learner_steps"] for i in training_order(answer["players"])]
    assert steps == [None, None, 1000, 2000, 3000]


@pytest.mark.parametrize(
    ("count", "most", "chosen"),
    [
        (3, 12, [0, 1, 2]),
        (12, 12, list(range(12))),
        (5, 3, [0, 2, 4]),
        (100, 1, [99]),
        (100, 2, [0, 99]),
        (10, 4, [0, 3, 6, 9]),
    ],
)
def test_snapshots_are_spread_evenly_and_the_newest_is_in(count, most, chosen):
    assert spread(count, most).tolist() == chosen


def test_without_snapshots_the_checkpoints_are_rated(monkeypatch):
    versions = {"latest": 9, "best": 4}
    monkeypatch.setattr(ladders, "taken", lambda run_dir: [])
    monkeypatch.setattr(ladders, "saved", lambda run_dir, name: snapshot(versions[name]))

    assert [s.version for s in picked(Path("runs/a"), 12)] == [4, 9]
    versions["best"] = 9
    assert [s.version for s in picked(Path("runs/a"), 12)] == [9]


def test_the_table_says_places_ratings_and_points():
    said = command.summary(ladder({}).answer())

    assert said[0].startswith("heaps: 5 players, 100 games for each pair")
    assert " ".join(said[1].split()) == ("place name Elo learner steps vs random vs scripted games")
    assert said[2].split()[:2] == ["1", "v30"]
    assert said[2].split()[-6:] == ["3,000", "80", "%", "80", "%", "400"]
    assert "Spearman of snapshot number and rating: 1.00" in said
    assert "0 of 1 triples of snapshots beat each other in a circle (0.0%)" in said


def test_the_table_s_matrix_has_a_row_and_a_column_for_every_player():
    rows = command.matrix(ladder({}).answer())

    assert rows[0].split() == ["1", "2", "3", "4", "5"]
    assert rows[1].split() == ["1", "v30", "-", "80", "80", "80", "80"]
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--games", "7"], "needs an even number above 0"),
        (["--games", "0"], "needs an even number above 0"),
        (["--snapshots", "0"], "above 0"),
        (["--seed", "-1"], "--seed: needs a whole number, at least 0"),
        (["--out", "ladder.png"], "does not end in .html"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_played(capsys, argv, said):
    assert main(["ladder", "runs/a", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_not_there_is_refused(capsys, tmp_path):
    assert main(["ladder", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err

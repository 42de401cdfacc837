"""`rookery pathfinding` with a policy that has learned nothing: tables and pictures come out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from benchmarks import command as benchmarks
from benchmarks.table import BENCHES
from rookery.algorithms import build_algorithm
from rookery.cli.main import main
from rookery.config.load import RUN_FILE, dump, load
from rookery.config.schema import EnvConfig
from rookery.envs.make import make
from rookery.export import bundle
from rookery.export.bundle import PolicyBundle
from rookery.networks.named_arrays import arrays_of
from rookery.pathfinding import verb as command
from rookery.pathfinding.evaluation import case_sets, team_policy
from rookery.pathfinding.evaluation.play_cases import record_episode
from rookery.pathfinding.verb import RandomCases
from rookery.pathfinding.world import cases
from rookery.types import Weights

TEAM = "rookery.pathfinding.world.team_env:Team"
KEYS = {
    "agents",
    "size",
    "cases",
    "success",
    "individual_success",
    "mean_length",
    "sum_of_costs",
}
MAP = """type octile
height 3
width 5
map
.....
.@@@.
.....
"""
SCEN = """version 1
0\ta.map\t5\t3\t0\t0\t4\t0\t4
0\ta.map\t5\t3\t0\t2\t4\t2\t4
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a team of three that was never trained."""
    changes = {"algo.name": "team", "env.id": TEAM, "net.memory": 16, "env.kwargs": {"agents": 3}}
    config = load(None, changes=changes)
    envs = make(EnvConfig(id=TEAM, kwargs={"agents": 3}), 1)
    envs.close()
    algorithm = build_algorithm(config, envs.spec)
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    bundle.write(path, PolicyBundle(config, envs.codec, envs.spec, arrays_of(algorithm.acting)))
    return path


def answered(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["pathfinding", *map(str, argv), "--threads", "1", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1
    answer: dict[str, Any] = json.loads(out[0])
    return answer


SMALL = ("--agents", "2,5", "--size", 8, "--density", 0.2, "--cases", 3, "--steps", 12)


def test_an_evaluation_has_a_row_for_each_number_of_agents(policy, capsys):
    answer = answered(capsys, "evaluate", policy, *SMALL)

    assert [set(result) for result in answer["results"]] == [KEYS, KEYS]
    assert [(r["agents"], r["size"], r["cases"]) for r in answer["results"]] == [
        (2, 8, 3),
        (5, 8, 3),
    ]
    assert all(0 <= r["success"] <= r["individual_success"] <= 1 for r in answer["results"])
    assert all(r["mean_length"] <= 12 for r in answer["results"])


def test_the_same_seed_gives_the_same_rows_whatever_else_is_asked_for(policy, capsys):
    both = answered(capsys, "evaluate", policy, *SMALL)["results"]
    one = answered(capsys, "evaluate", policy, *SMALL, "--agents", 5)["results"]

    assert one == both[1:]


def test_other_methods_are_evaluated_on_the_same_cases(policy, capsys):
    answer = answered(
        capsys, "evaluate", policy, *SMALL, "--steps", 64, "--baseline", "--planner", "--shield"
    )

    assert answer["shield"]
    assert [set(row) for key in ("baseline", "planner") for row in answer[key]] == [KEYS] * 4
    assert [row["success"] for row in answer["planner"]] == [1.0, 1.0]
    for planned, own in zip(answer["planner"], answer["baseline"], strict=True):
        assert planned["sum_of_costs"] <= own["sum_of_costs"]


def test_actions_are_drawn_at_the_temperature_that_is_asked_for(policy, capsys):
    row = ("--agents", 1, "--size", 4, "--density", 0.1, "--cases", 8, "--steps", 200)

    best = answered(capsys, "evaluate", policy, *row)
    same = answered(capsys, "evaluate", policy, *row, "--temperature", 0)
    drawn = answered(capsys, "evaluate", policy, *row, "--temperature", 100)

    assert best == same
    assert (best["temperature"], drawn["temperature"]) == (0.0, 100.0)
    assert drawn["results"][0]["success"] > best["results"][0]["success"]  # it walks about


def test_a_table_is_said_row_by_row(policy, capsys):
    assert main(["pathfinding", "evaluate", str(policy), *map(str, SMALL), "--baseline"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("agents", "size", "cases", "success", "individual", "length", "sum", "of", "costs", "by")
    ]
    assert [line.split()[0] for line in lines[1:]] == ["2", "2", "5", "5"]
    assert [line.split()[-1] for line in lines[1:]] == ["policy", "paths"] * 2


def test_sizes_and_densities_may_be_ranges(policy, capsys):
    answer = answered(
        capsys, "evaluate", policy, *SMALL, "--size", "6-9", "--density", "0.1-0.3", "--agents", 2
    )

    assert [row["size"] for row in answer["results"]] == ["6-9"]


@pytest.mark.parametrize("collision", ["reference", "soft"])
def test_cases_may_come_from_a_file(policy, capsys, tmp_path, collision):
    file = tmp_path / "cases.npz"
    drawn = cases.generate(4, agents=3, size=7, density=0.1, rng=np.random.default_rng(0))
    cases.save(file, drawn)

    answer = answered(
        capsys, "evaluate", policy, "--cases-file", file, "--collision", collision, "--steps", 9
    )

    (row,) = answer["results"]
    assert (row["agents"], row["size"], row["cases"]) == (3, 7, 4)
    assert answer["collision"] == collision


def test_of_a_file_the_first_cases_may_be_taken(policy, capsys, tmp_path):
    file = tmp_path / "cases.npz"
    cases.save(file, cases.generate(4, agents=3, size=7, density=0, rng=np.random.default_rng(0)))
    flags = ("--cases-file", file, "--agents", 3, "--steps", 3)

    (row,) = answered(capsys, "evaluate", policy, *flags, "--cases", 2)["results"]

    assert row["cases"] == 2
    assert main(["pathfinding", "evaluate", str(policy), *map(str, flags), "--agents", "4"]) == 2
    assert "has instances of 3" in capsys.readouterr().err


def test_cases_may_come_from_a_map_and_its_scenario(policy, capsys, tmp_path):
    (tmp_path / "a.map").write_text(MAP)
    (tmp_path / "a.scen").write_text(SCEN)
    files = ("--map", tmp_path / "a.map", "--scen", tmp_path / "a.scen")

    answer = answered(
        capsys, "evaluate", policy, *files, "--agents", "1,2", "--steps", 20, "--baseline"
    )

    assert [row["size"] for row in answer["baseline"]] == ["3 x 5"] * 2
    assert [(row["mean_length"], row["sum_of_costs"]) for row in answer["baseline"]] == [
        (4.0, 4.0),
        (4.0, 8.0),
    ]


def test_an_svg_shows_the_episode(policy, capsys, tmp_path):
    out = tmp_path / "pictures" / "episode.svg"

    answer = answered(
        capsys, "show", policy, "--agents", 6, "--size", 9, "--steps", 10, "--out", out
    )

    root = ElementTree.parse(out).getroot()
    discs = root.findall(".//{*}g[@class='disc']/{*}circle")
    assert len(discs) == answer["agents"] == 6
    assert answer["bytes"] == out.stat().st_size


def test_of_a_run_folder_the_checkpoint_that_is_asked_for_plays(
    policy, capsys, tmp_path, monkeypatch
):
    found = bundle.read(policy)
    (tmp_path / RUN_FILE).write_text(dump(found.config))
    asked = []

    def read_weights(folder, which):
        asked.append((folder, which))
        return Weights(7, dict(found.arrays))

    monkeypatch.setattr(team_policy, "read_weights", read_weights)

    answer = answered(capsys, "evaluate", tmp_path, *SMALL, "--checkpoint", "last")
    shown = answered(capsys, "show", tmp_path, "--agents", 2, "--size", 6, "--steps", 3)

    assert answer["version"] == 7
    assert answer["results"] == answered(capsys, "evaluate", policy, *SMALL)["results"]
    assert asked == [(tmp_path, "last"), (tmp_path, "best")]
    assert shown["file"] == str(tmp_path / "episode.svg")


def test_a_gif_shows_the_episode(policy, capsys, tmp_path):
    out = tmp_path / "episode.gif"

    small = ("--agents", 2, "--size", 6, "--steps", 9, "--temperature", 100)  # it walks about
    answered(capsys, "show", policy, *small, "--out", out)

    with Image.open(out) as film:
        assert film.n_frames > 3


def test_a_drawn_case_is_shown_by_its_number_in_the_row(policy, capsys, tmp_path, monkeypatch):
    shown, numbers = [], []

    def watched(team, cases, *a, case, **k):
        shown.append(cases)
        numbers.append(case)
        return record_episode(team, cases, *a, case=case, **k)

    monkeypatch.setattr(case_sets, "record_episode", watched)
    row = ("--agents", 2, "--size", 6, "--density", 0.1, "--steps", 3)
    (whole,) = case_sets.random_case_sets(5, agents=[2], sizes=(6, 6), densities=(0.1, 0.1), seed=0)

    answered(capsys, "show", policy, *row, "--case", 4, "--out", tmp_path / "a.svg")

    assert np.array_equal(shown[0].starts[4], whole.cases.starts[4])
    assert numbers == [4]  # what it draws is what it draws in the row


def test_a_case_that_is_not_there_is_refused(policy, capsys, tmp_path):
    file = tmp_path / "cases.npz"
    cases.save(file, cases.generate(2, agents=1, size=5, density=0, rng=np.random.default_rng(0)))
    out = str(tmp_path / "a.svg")

    flags = ["--cases-file", str(file), "--case", "2", "--out", out]
    assert main(["pathfinding", "show", str(policy), *flags]) == 2
    assert "instances are 0 to 1" in capsys.readouterr().err


def test_the_demo_plays_the_packaged_policy(policy, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(team_policy, "files", lambda package: policy.parent)
    monkeypatch.setattr(command, "DEMO_CASES", RandomCases((2, 3), (8, 8), (0.1, 0.1), 20))
    monkeypatch.setattr(command, "SHOWN", RandomCases((3,), (8, 8), (0.1, 0.1), 1))
    out = tmp_path / "demo.svg"

    answer = answered(capsys, "demo", "--cases", 1, "--out", out)

    assert [row["agents"] for row in answer["results"]] == [2, 3]
    assert answer["file"] == str(out)
    assert out.is_file()


def test_the_demo_may_write_into_a_folder_of_its_name_again_and_again(
    policy, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(team_policy, "files", lambda package: policy.parent)
    monkeypatch.setattr(command, "DEMO_CASES", RandomCases((2,), (8, 8), (0.1, 0.1), 20))
    monkeypatch.setattr(command, "SHOWN", RandomCases((2,), (8, 8), (0.1, 0.1), 1))
    monkeypatch.chdir(tmp_path)

    first, second = (
        answered(capsys, "demo", "--cases", 1, "--out", "demo/a.svg") for _ in range(2)
    )

    assert first == second


def test_the_bench_reports_compiled_worlds_on_one_core_by_that_name(capsys, monkeypatch):
    whole = BENCHES["pathfinding"]
    monkeypatch.setitem(BENCHES, "pathfinding", replace(whole, contenders=whole.contenders[:1]))
    asked = ["pathfinding", "--rounds", "1", "--seconds", "0", "--json"]

    assert benchmarks.main(asked) == 0

    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    (result,) = answer["results"]
    assert (result["name"], answer["unit"]) == ("env_cpu_1core", "agent-steps/s")
    assert result["value"] > 0

"""The arithmetic and the bookkeeping of `python -m benchmarks`; the scripts in its table are not
run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import command, run
from benchmarks.bench import Answer, Bench, Better, Contender, Runs
from benchmarks.command import main
from benchmarks.report import report
from benchmarks.run import FOLDER, Trial, attempt, interleave
from benchmarks.summary import HOLDS, summary
from benchmarks.table import BENCHES
from benchmarks.variants import WITH_ACTORS
from eventually import eventually
from rookery.errors import LostError, StalledError

TREE = Path(__file__).parents[2]
# The command itself uses Rookery's parser, tables and errors; no contender runs any of it.
COMMAND = {
    FOLDER / f"{name}.py"
    for name in ("__main__", "bench", "command", "report", "run", "summary", "table", "variants")
}
SCRIPTS = sorted(set(FOLDER.rglob("*.py")) - COMMAND)
CONTENDERS = [
    pytest.param(contender, id=f"{name}-{contender.name}")
    for name, row in BENCHES.items()
    for contender in row.contenders
]
TRIAL = Trial(seed=0, seconds=0.0, deadline_s=20.0)
MADE_UP = Bench(
    about="made up",
    unit="widgets/s",
    contenders=(
        Contender(name="rookery", command=("fast.py",)),
        Contender(name="floor", command=("fast.py",), bar=0.5),
        Contender(name="rival", command=("slow.py",), package="json", bar=4.0),
        Contender(name="ghost", command=("none.py",), package="no_such_package_anywhere"),
    ),
)

ACTORS: Runs = {
    "1 actor": [{"value": 10.0}],
    "raw x1": [{"value": 20.0}],
    "4 actors": [{"value": 30.0}],
    "raw x4": [{"value": 40.0}],
}


def runs_of(**values: list[float]) -> Runs:
    return {
        name: [{"seed": seed, "value": value} for seed, value in enumerate(numbers)]
        for name, numbers in values.items()
    }


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fast.py").write_text("print('warming up')\nprint('{\"value\": 6.0}')")
    (tmp_path / "slow.py").write_text("print('{\"value\": 2.0}')")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setitem(BENCHES, "replay", MADE_UP)
    return tmp_path


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_script_of_the_table_exists(contender: Contender):
    script, *rest = contender.command
    work, _, function = (rest or [""])[0].partition(":")

    assert (FOLDER / script).is_file()
    if script == "trial.py":
        assert f"def {function}(seed: int)" in (FOLDER / work).read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_only_rookerys_own_contenders_know_rookery(script: Path):
    """A floor or a peer that imports Rookery would move with it."""
    knows = "from rookery" in script.read_text() or "import rookery" in script.read_text()

    assert not knows or script.name.startswith("rookery_")


@pytest.mark.parametrize("row", BENCHES.values(), ids=BENCHES)
def test_every_contender_is_compared_with_a_contender_that_takes_part(row: Bench):
    names = [contender.name for contender in row.contenders]

    assert len(set(names)) == len(names)
    assert {contender.reference for contender in row.contenders} <= set(names)
    assert not any(
        contender.package for contender in row.contenders if contender.name == contender.reference
    )


def test_every_direction_has_a_comparison():
    assert set(HOLDS) == set(Better)


def test_without_a_baseline_the_reference_is_the_rookery_of_the_same_group():
    assert Contender(name="draw:cpprb", command=()).reference == "draw:rookery"
    assert Contender(name="sb3", command=()).reference == "rookery"


def test_value_is_the_median_and_spread_the_range_over_it():
    answer = summary("made-up", MADE_UP, runs_of(rookery=[10.0, 8.0, 14.0]), absent=[])

    assert answer["results"] == [{"name": "rookery", "value": 10.0, "spread": 0.6}]


def test_a_ratio_is_rookery_over_the_peer_and_rookery_has_none():
    runs = runs_of(rookery=[6.0, 7.0, 8.0], floor=[14.0], rival=[2.0, 2.0, 9.0])

    answer = summary("made-up", MADE_UP, runs, absent=[])

    assert answer["ratios"] == {"floor": 0.5, "rival": 3.5}


def test_a_bar_is_held_on_its_edge_and_missed_below():
    runs = runs_of(rookery=[7.0], floor=[14.0], rival=[2.0])

    bars = summary("made-up", MADE_UP, runs, absent=[])["bars"]

    assert bars["floor"] == {"bar": 0.5, "found": 0.5, "held": True}
    assert bars["rival"] == {"bar": 4.0, "found": 3.5, "held": False}


def test_where_lower_is_better_a_smaller_ratio_and_a_smaller_value_hold():
    row = Bench(
        about="",
        unit="s",
        better=Better.LOWER,
        contenders=(
            Contender(name="rookery", command=(), bar=3.0),
            Contender(name="sb3", command=(), bar=1 / 3),
        ),
    )

    quick = summary("train", row, runs_of(rookery=[3.0], sb3=[12.0]), absent=[])["bars"]
    late = summary("train", row, runs_of(rookery=[6.0], sb3=[12.0]), absent=[])["bars"]

    assert [quick[name]["held"] for name in ("rookery", "sb3")] == [True, True]
    assert [late[name]["held"] for name in ("rookery", "sb3")] == [False, False]


def test_a_training_that_never_passed_is_named_as_censored():
    runs = runs_of(rookery=[1.0, 1.0], rival=[5.0, 5.0])
    runs["rival"][1]["solved"] = False

    assert summary("made-up", MADE_UP, runs, absent=[])["censored"] == {"rival": [1]}


def test_rookery_holds_no_bar_by_failing_fast():
    runs = runs_of(rookery=[70.0], rival=[2.0])
    runs["rookery"][0]["solved"] = False

    assert not summary("made-up", MADE_UP, runs, absent=[])["bars"]["rival"]["held"]


def test_rounds_are_interleaved():
    turns: list[tuple[str, int]] = []

    def attempt(contender: Contender, trial: Trial) -> Answer:
        turns.append((contender.name, trial.seed))
        return {"seed": trial.seed, "value": 1.0}

    runs = interleave(MADE_UP.contenders[:2], [TRIAL, TRIAL._replace(seed=1)], attempt)

    assert turns == [("rookery", 0), ("floor", 0), ("rookery", 1), ("floor", 1)]
    assert [answer["seed"] for answer in runs["floor"]] == [0, 1]


def test_the_last_line_is_json_of_the_promised_shape(made_up, capsys):
    assert main(["replay", "--rounds", "1", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert answer["bench"] == "replay"
    assert answer["unit"] == "widgets/s"
    assert answer["results"][0] == {"name": "rookery", "value": 6.0, "spread": 0.0}
    assert answer["ratios"] == {"floor": 1.0}  # peers only when asked for
    assert answer["runs"]["rookery"] == [{"seed": 0, "value": 6.0}]


def test_a_missing_peer_is_reported_with_its_extra_and_the_others_run(made_up, capsys):
    assert main(["replay", "--peers", "--rounds", "1", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert answer["ratios"] == {"floor": 1.0, "rival": 3.0}
    assert list(answer["absent"]) == ["ghost"]
    assert "rookery[peers]" in answer["absent"]["ghost"]


def test_the_report_shows_ratios_bars_and_who_is_absent():
    runs = runs_of(rookery=[6000.0], floor=[8000.0], rival=[2000.0])
    answer = summary("made-up", MADE_UP, runs, absent=MADE_UP.contenders[-1:])

    title, _, *lines = report(answer)

    assert title == "made-up, widgets/s, higher is better"
    assert [line.split() for line in lines[:3]] == [
        ["rookery", "6,000", "0%"],
        ["floor", "8,000", "0%", "0.75", "0.5", "held"],
        ["rival", "2,000", "0%", "3", "4", "missed"],
    ]
    assert "rookery[peers]" in lines[3]


def test_each_trial_runs_on_one_thread_with_its_seed(made_up):
    (made_up / "fast.py").write_text(
        "import json, os, sys\n"
        "omp = os.environ['OMP_NUM_THREADS']\n"
        "print(json.dumps({'value': 1, 'omp': omp, 'given': sys.argv[1:]}))"
    )

    answer = attempt(MADE_UP.contenders[0], TRIAL._replace(seed=7))

    assert answer["omp"] == "1"
    assert answer["given"][:2] == ["--seed", "7"]


def test_a_contender_that_fails_is_named_with_its_own_words(made_up):
    (made_up / "fast.py").write_text("raise SystemExit('out of widgets')")

    with pytest.raises(LostError, match=r"rookery ended with exit code 1(?s:.*)out of widgets"):
        attempt(MADE_UP.contenders[0], TRIAL)


def test_a_contender_that_hangs_is_given_up_at_its_deadline(made_up):
    (made_up / "fast.py").write_text("import signal; signal.pause()")

    with pytest.raises(StalledError, match="took more than"):
        attempt(MADE_UP.contenders[0], TRIAL._replace(deadline_s=0.01))


def test_what_a_trial_leaves_in_its_temporary_folder_goes_with_it(made_up):
    (made_up / "fast.py").write_text(
        "import json, tempfile\nprint(json.dumps({'value': 1, 'left': tempfile.mkstemp()[1]}))"
    )

    left = Path(attempt(MADE_UP.contenders[0], TRIAL)["left"])

    assert left.parent.name.startswith("rookery-bench-")
    assert not left.parent.exists()


def test_the_temporary_folder_of_a_trial_that_was_killed_goes_too(made_up, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(made_up))
    (made_up / "fast.py").write_text("import signal; signal.pause()")

    with pytest.raises(StalledError):
        attempt(MADE_UP.contenders[0], TRIAL._replace(deadline_s=0.01))

    assert not list(made_up.glob("rookery-bench-*"))


def test_a_trial_ends_with_a_command_that_is_terminated(tmp_path):
    """SIGTERM reaches the command alone: the trial has a session of its own."""
    started = tmp_path / "started"
    (tmp_path / "fast.py").write_text(
        "import os, pathlib, signal\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').rename({str(started)!r})\n"
        "signal.pause()"
    )
    code = (
        "import pathlib, runpy, sys\n"
        "from benchmarks import bench, run, table\n"
        f"run.FOLDER = pathlib.Path({str(tmp_path)!r})\n"
        "forever = bench.Contender(name='rookery', command=('fast.py',))\n"
        "table.BENCHES['replay'] = bench.Bench(about='', unit='', contenders=(forever,))\n"
        "sys.argv = ['benchmarks', 'replay']\n"
        "runpy.run_module('benchmarks', run_name='__main__')"
    )

    child = subprocess.Popen([sys.executable, "-c", code], cwd=TREE)
    assert eventually(started.exists, within_s=30)
    child.send_signal(signal.SIGTERM)

    assert child.wait(30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_python_dash_m_runs_a_benchmark_from_the_root_of_the_tree():
    words = [sys.executable, "-m", "benchmarks", "--help"]

    shown = subprocess.run(words, cwd=TREE, capture_output=True, text=True, timeout=30)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert [name for name in BENCHES if f"\n  {name} " not in shown.stdout] == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: bench"),
        (["reply"], "choose from 'replay', 'collect'"),
        (["replay", "--seeds", "4-0"], "--seeds"),
        (["replay", "--rounds", "0"], "--rounds"),
        (["replay", "--rond", "1"], "did you mean --rounds?"),
        (["replay", "--actors", "2"], "collect and async"),
        (["replay", "--engines", "ray"], "it goes with train"),
        (["train", "--engines", "threads"], "of processes, ray, got threads"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(argv: list[str], message: str, capsys):
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("benchmarks: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    row = replace(MADE_UP, needs="no_such_package_anywhere")
    monkeypatch.setitem(BENCHES, "replay", row)
    monkeypatch.setitem(command.EXTRAS, "no_such_package_anywhere", "some-extra")

    assert main(["replay"]) == 2
    assert "pip install 'rookery[some-extra]'" in capsys.readouterr().err


def test_every_package_that_a_benchmark_needs_has_its_extra():
    assert {row.needs for row in BENCHES.values() if row.needs} == set(command.EXTRAS)


def test_a_failure_and_an_interrupt_have_exit_codes_of_their_own(made_up, monkeypatch, capsys):
    (made_up / "fast.py").write_text("raise SystemExit('out of widgets')")
    lost = main(["replay", "--rounds", "1"])
    monkeypatch.setattr(command, "interleave", _interrupted)

    assert (lost, main(["replay"])) == (3, 130)
    assert capsys.readouterr().err.endswith("benchmarks: interrupted\n")


def _interrupted(*args: object) -> Runs:
    raise KeyboardInterrupt


class TestNumbersOfActors:
    def test_runs_are_compared_with_the_first_and_keep_85_per_cent_of_each_actor(self):
        answer = summary("collect", WITH_ACTORS["collect"]([1, 4]), ACTORS, absent=[])

        assert answer["ratios"]["4 actors"] == 3.0
        assert answer["bars"]["4 actors"]["bar"] == pytest.approx(3.4)
        assert not answer["bars"]["4 actors"]["held"]

    def test_runs_are_compared_with_as_many_processes_that_share_nothing(self):
        answer = summary("collect", WITH_ACTORS["collect"]([1, 4]), ACTORS, absent=[])

        assert answer["ratios"] == {
            "4 actors": 3.0,
            "raw x4": 2.0,
            "1 actor / raw x1": 0.5,
            "4 actors / raw x4": 0.75,
            "4 actors, efficiency": 0.75,
        }
        assert list(answer["bars"]) == ["4 actors"]

    def test_efficiency_is_counted_from_the_first_run_where_that_has_several_actors(self):
        runs = {"2 actors": [{"value": 10.0}], "8 actors": [{"value": 30.0}]}

        answer = summary("collect", WITH_ACTORS["collect"]([2, 8]), runs, absent=[])

        assert answer["ratios"]["8 actors, efficiency"] == 0.75

    def test_a_run_and_its_ceiling_take_turns(self):
        turns = [contender.name for contender in WITH_ACTORS["collect"]([1, 4]).contenders]

        assert turns == ["1 actor", "raw x1", "4 actors", "raw x4"]

    def test_ratios_that_are_no_contenders_stand_below_the_table(self):
        answer = summary("collect", WITH_ACTORS["collect"]([1, 4]), ACTORS, absent=[])

        below = report(answer)[-3:]

        assert below == [
            "1 actor / raw x1: 0.5",
            "4 actors / raw x4: 0.75",
            "4 actors, efficiency: 0.75",
        ]

    @pytest.mark.parametrize("name", WITH_ACTORS)
    def test_their_scripts_exist(self, name: str):
        for contender in WITH_ACTORS[name]([1, 2]).contenders:
            assert (FOLDER / contender.command[0]).is_file()

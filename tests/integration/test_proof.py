"""The pure parts of `benchmarks.proof`: renames, copied checkpoints, verdicts and the table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load, save

from benchmarks.proof import checkpoints, renames
from benchmarks.proof.cases import CASES, SEED, Case, Kind, train
from benchmarks.proof.compare import Row, markdown, verdict
from benchmarks.proof.play import Outcome
from benchmarks.proof.renames import Names
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.cli import train as train_verb
from rookery.config.algorithms import known
from rookery.config.parse import keys
from rookery.config.schema import Config
from rookery.terminal.arguments import Parser, parse

TREE = Path(__file__).parents[2]
MOVED = Names(
    references={
        "rookery.envs.toy": "rookery.envs.toy.basic",
        "rookery.envs.hold:Hold": "rookery.envs.action_repeat:ActionRepeat",
    },
    renamed={"replay.draw": "replay.sampling", "sharing.guard": None, "device.lecture": "algo.a"},
    values={"replay.draw": {"prioritized": "by_priority"}},
)
TRAINED = [case for case in CASES if case.kind is not Kind.EVALUATE]
A = Outcome("a" * 64, (1_400, 280, 12), 3.0)
B = Outcome("b" * 64, (1_400, 280, 12), 4.0)


@pytest.fixture
def stored_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "STATE", {"crew": "actors", "driver.meter": "driver.metrics"})
    monkeypatch.setattr(renames, "ARRAYS", {"crew:": "actors:"})
    monkeypatch.setattr(renames, "MANIFEST", {"rookery": "9.9"})


def source_of(folder: Path, *modules: str, text: str = "") -> Path:
    for module in modules:
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# --- names


def test_a_command_line_gets_new_settings_values_and_references_and_loses_what_has_left() -> None:
    given = [
        *("train", "--env", "rookery.envs.toy:Corridor", "--seed", "3"),
        *("--set", "replay.draw=prioritized", "--set", "sharing.guard=false"),
        *("--set", "env.wrappers=[{rookery.envs.hold:Hold: {steps: 2}}]", "--json"),
    ]

    assert MOVED.argv(given) == [
        *("train", "--env", "rookery.envs.toy.basic:Corridor", "--seed", "3"),
        *("--set", "replay.sampling=by_priority"),
        *("--set", "env.wrappers=[{rookery.envs.action_repeat:ActionRepeat: {steps: 2}}]"),
        "--json",
    ]


def test_a_longer_module_name_is_another_module() -> None:
    assert MOVED.text("rookery.envs.toys:Corridor") == "rookery.envs.toys:Corridor"
    assert MOVED.text("rookery.envs.toy.basic:Corridor") == "rookery.envs.toy.basic:Corridor"
    assert MOVED.text("rookery.envs.hold:Other") == "rookery.envs.hold:Other"


def test_settings_of_a_run_are_renamed_wherever_they_are() -> None:
    given = {
        "env": {"id": "rookery.envs.toy:Corridor", "imports": ["rookery.envs.toy"]},
        "replay": {"batch": 32, "draw": "prioritized"},
        "sharing": {"guard": False, "pool": None},
        "algo": {"name": "team"},
        "device": {"lecture": 32},
    }

    assert MOVED.settings(given) == {
        "env": {"id": "rookery.envs.toy.basic:Corridor", "imports": ["rookery.envs.toy.basic"]},
        "replay": {"batch": 32, "sampling": "by_priority"},
        "sharing": {"pool": None},
        "algo": {"name": "team", "a": 32},
        "device": {},
    }


def test_a_setting_that_became_one_of_an_algorithm_is_dropped_from_runs_of_others() -> None:
    given = {"algo": {"name": "dqn"}, "device": {"lecture": 32, "rows": 64}}

    assert MOVED.settings(given) == {"algo": {"name": "dqn"}, "device": {"rows": 64}}


def test_without_renames_nothing_changes() -> None:
    argv = train(CASES[0], "inline", run_dir="run")

    assert Names().argv(argv) == argv


def test_a_module_is_renamed_where_the_old_file_is_gone_and_the_new_one_is_there(
    tmp_path: Path,
) -> None:
    old, new = "rookery.envs.toy", renames.REFERENCES["rookery.envs.toy"]

    def renamed(folder: str, *modules: str) -> bool:
        return old in Names.of(source_of(tmp_path / folder, *modules), {}).references

    assert renamed("moved", new)
    assert not renamed("before", old)
    assert not renamed("both", old, new)
    assert not renamed("neither", "rookery.envs.make")


def test_a_class_is_renamed_where_the_new_module_defines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"rookery.envs.hold:Hold": "rookery.envs.hold:ActionRepeat"}
    monkeypatch.setattr(renames, "REFERENCES", table)
    before = source_of(tmp_path / "a", "rookery.envs.hold", text="class Hold(Wrapper):\n")
    after = source_of(tmp_path / "b", "rookery.envs.hold", text="class ActionRepeat(Wrapper):\n")

    assert Names.of(before, {}).references == {}
    assert Names.of(after, {}).references == table


def test_a_setting_is_renamed_where_a_tree_knows_the_new_name_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(renames, "SETTINGS", {"replay.draw": "replay.sampling", "a.b": None})
    monkeypatch.setattr(renames, "VALUES", {"replay.draw": {"uniform": "even"}})

    before = Names.of(tmp_path, {"replay.draw": "uniform|prioritized", "a.b": "int"})
    after = Names.of(tmp_path, {"replay.sampling": "even|prioritized"})

    assert before == Names({}, {}, {"replay.draw": {}})
    assert after.renamed == {"replay.draw": "replay.sampling", "a.b": None}
    assert after.values == {"replay.draw": {"uniform": "even"}}


def test_no_entry_of_the_table_is_used_before_the_tree_has_the_new_name() -> None:
    names = Names.of(TREE / "src", dict.fromkeys(keys(), ""))
    source = TREE / "src"

    for old, new in names.references.items():
        assert not renames._defined(source, old)
        assert renames._defined(source, new)
    assert all(new is None or new in keys() for new in names.renamed.values())


# --- checkpoints


def stored_run(folder: Path) -> Path:
    """Makes what a run leaves behind, as the library writes it."""
    parent = folder / "checkpoints"
    content = Content(
        env_steps=700,
        version=4,
        exact=True,
        final=False,
        about={"spec": {"name": "rookery.envs.toy:Corridor"}},
        weights={"body.weight": np.ones(3, dtype=np.float32)},
        state={"crew": {"actors": [1, 2]}, "driver": {"meter": {"wall_s": 1.5}}},
        arrays={"crew:0.net": np.arange(5.0), "pool:tree": np.arange(3, dtype=np.int8)},
    )
    checkpoint.write(parent, checkpoint.name_of(700), content)
    config = {"env": {"id": "rookery.envs.toy:Corridor"}, "sharing": {"guard": False}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.usefixtures("stored_renames")
def test_a_translated_checkpoint_verifies_and_has_the_new_names(tmp_path: Path) -> None:
    run_dir = stored_run(tmp_path)

    checkpoints.translate(run_dir, MOVED)

    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    assert found.state() == {"actors": {"actors": [1, 2]}, "driver": {"metrics": {"wall_s": 1.5}}}
    assert found.arrays().keys() == {"actors:0.net", "pool:tree"}
    np.testing.assert_array_equal(found.arrays()["actors:0.net"], np.arange(5.0))
    assert found.manifest["about"]["spec"]["name"] == "rookery.envs.toy.basic:Corridor"
    assert found.manifest["rookery"] == "9.9"
    settings: dict[str, Any] = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert settings == {"env": {"id": "rookery.envs.toy.basic:Corridor"}, "sharing": {}}


def test_without_renames_a_translated_checkpoint_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("STATE", "ARRAYS", "MANIFEST"):
        monkeypatch.setattr(renames, table, {})
    run_dir = stored_run(tmp_path)
    before = checkpoint.newest(run_dir / "checkpoints").found
    assert before is not None
    state, arrays, config = before.state(), before.arrays(), (run_dir / "config.yaml").read_text()

    checkpoints.translate(run_dir, Names())

    after = checkpoint.newest(run_dir / "checkpoints").found
    assert after is not None
    assert after.state() == state
    assert after.manifest["about"] == before.manifest["about"]
    assert all((after.arrays()[name] == array).all() for name, array in arrays.items())
    assert yaml.safe_load((run_dir / "config.yaml").read_text()) == yaml.safe_load(config)


def test_a_file_that_a_copy_shares_with_its_original_is_not_written_to(tmp_path: Path) -> None:
    run_dir = stored_run(tmp_path / "run")
    state = next(run_dir.glob("checkpoints/*/state.json"))
    other = tmp_path / "other.json"
    other.hardlink_to(state)
    before = other.read_bytes()

    checkpoints.translate(run_dir, Names(references={"rookery.envs.toy": "rookery.elsewhere"}))

    assert other.read_bytes() == before
    assert json.loads(before)["crew"] == {"actors": [1, 2]}


@pytest.mark.usefixtures("stored_renames")
def test_renamed_arrays_keep_their_data_and_their_metadata() -> None:
    arrays = {"crew:a": np.arange(7, dtype=np.int16), "b": np.ones((2, 3))}

    raw = checkpoints.renamed_arrays(save(arrays, metadata={"version": "4"}))

    new = load(raw)
    assert new.keys() == {"actors:a", "b"}
    np.testing.assert_array_equal(new["actors:a"], arrays["crew:a"])
    np.testing.assert_array_equal(new["b"], arrays["b"])
    assert b'"version": "4"' in raw


# --- verdicts


def test_equal_outcomes_are_equal_after_one_run_or_two() -> None:
    assert verdict("dqn", "inline", [A], [A]) == Row("dqn", "inline", "a" * 12, "a" * 12, True)
    assert verdict("dqn", "inline", [A, A], [A, A]).equal


def test_trees_that_repeat_themselves_and_differ_are_not_equal() -> None:
    row = verdict("dqn", "inline", [A, A], [B, B])

    assert not row.equal
    assert row.remark == "score 3.0 → 4.0"


def test_equal_weights_with_another_score_are_not_equal() -> None:
    other = A._replace(score=1.0)

    assert not verdict("dqn", "inline", [A, A], [other, other]).equal


@pytest.mark.parametrize(("olds", "news"), [([A, B], [A, A]), ([A, A], [A, B]), ([A, B], [B, A])])
def test_a_case_that_does_not_repeat_itself_is_compared_by_counts(
    olds: list[Outcome], news: list[Outcome]
) -> None:
    row = verdict("dqn", "inline", olds, news)

    assert row.equal
    assert row.remark == "two runs on one tree differ: compared by counts"


def test_other_counts_are_not_equal_whatever_else_varies() -> None:
    longer = B._replace(counts=(1_405, 281, 12))

    assert not verdict("dqn", "inline", [A, B], [A, longer]).equal
    assert "env_steps 1400 → 1405" in verdict("dqn", "inline", [A, A], [longer, longer]).remark


def test_measures_that_vary_have_no_counts_to_fall_back_on() -> None:
    one, other = Outcome("a"), Outcome("b")

    assert not verdict("packaged-policy", "-", [one, other], [one, one]).equal


def test_the_table_has_a_line_for_each_row_and_names_both_commits() -> None:
    rows = [Row("dqn", "inline", "aa", "aa", True), Row("ppo", "ray", "aa", "bb", False, "a | b")]

    page = markdown(rows, "0123", "4567")

    assert "Old: 0123. New: 4567." in page
    assert "| dqn | inline | aa | aa | yes |  |" in page
    assert "| ppo | ray | aa | bb | **no** | a / b |" in page


# --- cases


def planned(case: Case) -> list[Config]:
    """Returns the settings of a case's runs, as this tree understands its command lines."""
    names = Names.of(TREE / "src", dict.fromkeys(keys(), ""))
    parser = Parser("rookery train", None)
    train_verb.add_arguments(parser)
    return [
        config
        for engine in case.engines
        for config in train_verb.plan(parse(parser, names.argv(train(case, engine))[1:]))
    ]


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_every_case_asks_for_one_seeded_run_of_its_engine_on_the_cpu(case: Case) -> None:
    configs = planned(case)

    assert [config.run.seed for config in configs] == [SEED] * len(case.engines)
    assert {config.learner.device for config in configs} == {"cpu"}
    alone = ["inline" if engine == "device" else engine for engine in case.engines]
    assert [config.engine.value for config in configs] == alone


def test_every_algorithm_is_run_inline_and_in_processes() -> None:
    configs = [config for case in TRAINED for config in planned(case)]
    run = {(config.algo.name, config.engine.value) for config in configs}

    assert run >= {(name, engine) for name in known() for engine in ("inline", "processes")}

"""Where settings come from, what is refused, and that nothing is lost on the way back."""

import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from rookery.config import load as loading
from rookery.config.algorithms import ALGORITHMS, known
from rookery.config.load import RUN_FILE, as_dict, differences, dump, load, load_run, scenarios
from rookery.config.other_libraries import NAMES_ELSEWHERE
from rookery.config.parse import keys
from rookery.config.schema import Config, Draw, NetConfig
from rookery.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


# What may be given


def test_no_source_gives_the_defaults():
    assert load(None) == Config()


@pytest.mark.parametrize("name", sorted(scenarios()))
def test_every_packaged_scenario_loads_under_its_own_name_and_has_a_target(name):
    config = load(name)

    assert config.name == name
    assert config.about != ""
    assert config.eval.target is not None


def test_a_later_source_wins(file):
    path = file("replay: {batch_size: 1, capacity: 5000}\nrun: {seed: 1}\nactor: {envs: 1}")

    config = load(path, overrides=["replay.batch_size=2", "run.seed=2"], changes={"run.seed": 3})

    assert (config.replay.capacity, config.actor.envs) == (5000, 1)  # file over defaults
    assert config.replay.batch_size == 2  # overrides over file
    assert config.run.seed == 3  # changes over all


def test_the_last_of_two_equal_overrides_wins():
    assert load(None, overrides=["run.seed=1", "run.seed=2"]).run.seed == 2


def test_what_a_file_breaks_an_override_may_mend(file):
    path = file("replay: {batch_size: 50001}")

    assert "got 50001 and 1000" in refusal(path)
    assert load(path, overrides=["replay.capacity=60000"]).replay.batch_size == 50001


def test_a_file_without_a_name_is_named_after_itself(file):
    assert load(file("run: {seed: 1}", "my-idea.yaml")).name == "my-idea"


def test_a_file_in_this_folder_needs_no_extension(file, monkeypatch):
    monkeypatch.chdir(file("run: {seed: 7}", "idea").parent)

    assert load("idea").run.seed == 7


def test_a_packaged_name_is_not_shadowed_by_a_folder(tmp_path, monkeypatch):
    (tmp_path / "cartpole").mkdir()
    monkeypatch.chdir(tmp_path)

    assert load("cartpole").eval.target == 475


def test_a_config_is_a_source_too():
    config = load("corridor", overrides=["env.kwargs.length=5"])

    assert load(config) == config
    assert load(config, changes={"run.seed": 9}).run.seed == 9
    assert load(config, changes={"run.seed": 9}).env.kwargs == {"length": 5}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("run.env_steps=1e5", ("run", "env_steps"), 100_000),
        ("run.env_steps=100_000", ("run", "env_steps"), 100_000),
        ("run.env_steps=2.5e6", ("run", "env_steps"), 2_500_000),
        ("run.env_steps=2.5e+6", ("run", "env_steps"), 2_500_000),
        ("run.env_steps=64000.0", ("run", "env_steps"), 64_000),
        ("learner.lr=1e-4", ("learner", "lr"), 1e-4),
        ("learner.lr=1E+2", ("learner", "lr"), 100.0),
        ("learner.lr=1", ("learner", "lr"), 1.0),
        ("eval.target=null", ("eval", "target"), None),
        ("eval.target=-110", ("eval", "target"), -110.0),
        ("algo.dueling=yes", ("algo", "dueling"), True),
        ("replay.sampling=prioritized", ("replay", "sampling"), Draw.PRIORITIZED),
        ("net.hidden=[64, 32]", ("net", "hidden"), (64, 32)),
        ("net.hidden=[]", ("net", "hidden"), ()),
        ("report.tag=5", ("report", "tag"), "5"),
        ("report.tag=2024-01-01", ("report", "tag"), "2024-01-01"),
        ("report.tag=yes", ("report", "tag"), "yes"),
        ("report.tag=", ("report", "tag"), ""),
        ("report.tag=a=b", ("report", "tag"), "a=b"),
        ("run.run_dir=null", ("run", "run_dir"), None),
        ("run.run_dir=2024", ("run", "run_dir"), "2024"),
        ("learner.device=cuda:1", ("learner", "device"), "cuda:1"),
        ("run.callbacks=[a.b:c, d:e]", ("run", "callbacks"), ("a.b:c", "d:e")),
        ("env.wrappers=[A, {b: {c: 1}}]", ("env", "wrappers"), ("A", {"b": {"c": 1}})),
        ("env.kwargs.x.y=1", ("env", "kwargs"), {"x": {"y": 1}}),
        ("env.kwargs={x: 1}", ("env", "kwargs"), {"x": 1}),
        ("algo=dqn", ("algo", "name"), "dqn"),
        ("net=a.b:C", ("net", "custom"), "a.b:C"),
        ("replay={batch_size: 3}", ("replay", "batch_size"), 3),
        ("replay=", ("replay", "batch_size"), 128),
    ],
)
def test_an_override_is_read_as_its_setting_wants_it(override, key, value):
    config = load(None, overrides=[override])

    found = getattr(getattr(config, key[0]), key[1])
    assert found == value
    assert type(found) is type(value)


def test_a_bare_word_for_a_section_can_be_refined(file):
    path = file("net: mypackage.nets:MyNet\nalgo: dqn\n")

    config = load(path, overrides=["net.kwargs.depth=2", "algo.n_step=3"])

    assert config.net == NetConfig(custom="mypackage.nets:MyNet", kwargs={"depth": 2})
    assert (config.algo.name, config.algo.n_step) == ("dqn", 3)


def test_a_mapping_is_merged_into_a_section_but_replaces_a_setting(file):
    path = file("replay: {capacity: 5000}\nenv: {kwargs: {a: 1}}")

    config = load(path, overrides=["replay={batch_size: 3}", "env.kwargs={b: 2}"])

    assert (config.replay.capacity, config.replay.batch_size) == (5000, 3)
    assert config.env.kwargs == {"b": 2}


def test_a_section_with_nothing_in_it_is_all_defaults(file):
    assert load(file("replay:\nrun: {seed: 1}")).replay == Config().replay


def test_numpy_numbers_are_numbers():
    np = pytest.importorskip("numpy")

    config = load(None, changes={"run.seed": np.int64(3), "learner.lr": np.float32(0.5)})

    assert (type(config.run.seed), type(config.learner.lr)) == (int, float)


# What is refused


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "replay.batchsize=64",
            ["replay.batchsize", "did you mean replay.batch_size?", "capacity"],
        ),
        ("reply.batch=64", ["'reply'", "did you mean replay?"]),
        ("batch=64", ["did you mean replay.batch_size?"]),
        ("epsilon=0.1", ["actor.epsilon or eval.epsilon"]),
        ("actor.lr=0.1", ["did you mean learner.lr?"]),
        ("learning_rate=0.1", ["unknown setting 'learning_rate'", "Rookery calls it learner.lr."]),
        ("learner.learning_rate=0.1", ["'learner.learning_rate'", "Rookery calls it learner.lr."]),
        ("buffer_size=1000", ["Rookery calls it replay.capacity."]),
        ("algo.clip_param=0.2", ["Rookery calls it algo.clip_range."]),
        ("algo.clip_coef=0.2", ["Rookery calls it algo.clip_range."]),
        ("replay.buffer_size=10", ["Rookery calls it replay.capacity.", "allowed in replay:"]),
        ("algo.ent_coef=0.1", ["calls it algo.temperature (sac, tqc) or algo.ent_coef"]),
        ("policy_kwargs.net_arch=[64]", ["'policy_kwargs'", "Rookery calls it net.hidden"]),
        ("sb3.learning_rate=0.1", ["allowed in sb3: algorithm, policy, kwargs, envs"]),
        ("=3", ["unknown setting ''"]),
        ("replay.=3", ["unknown setting 'replay.'"]),
        ("replay.batch_size", ["section.key=value", "'replay.batch_size'"]),
        ("replay.batch_size.x=3", ["replay.batch_size must be a whole number", "{'x': 3}"]),
        ("replay.batch_size=many", ["replay.batch_size", "whole number", "'many'"]),
        ("replay.batch_size='64'", ["whole number", "the text '64'", "no quotes"]),
        ("replay.batch_size=true", ["whole number", "got true"]),
        ("replay.batch_size=64.5", ["whole number", "64.5"]),
        ("replay.batch_size=1.5e0", ["whole number", "1.5e0"]),
        ("replay.batch_size=15e-1", ["whole number", "15e-1"]),
        ("replay.batch_size=.inf", ["whole number", "inf"]),
        ("replay.batch_size=.nan", ["whole number", "nan"]),
        ("replay.batch_size=1e999", ["whole number", "1e999"]),
        ("replay.batch_size=1e30", ["64 bits"]),
        ("replay.batch_size=null", ["whole number", "nothing"]),
        ("replay.batch_size=99999999999999999999", ["64 bits"]),
        ("learner.lr=fast", ["learner.lr must be a number", "'fast'"]),
        ("learner.lr=true", ["a number", "got true"]),
        ("learner.lr=.nan", ["finite"]),
        ("learner.lr=.inf", ["finite"]),
        ("learner.lr=1e999", ["finite"]),
        ("learner.lr=-0.1", ["learner.lr must be at least 0", "-0.1"]),
        ("eval.target=high", ["a number", "null is allowed too"]),
        ("algo.double=1", ["true or false", "got 1"]),
        ("replay.sampling=prioritised", ["uniform, prioritized", "did you mean 'prioritized'?"]),
        ("replay.sampling=3", ["uniform, prioritized", "got 3"]),
        ("net.hidden=64", ["a list", "got 64"]),
        ("net.hidden=[64, a]", ["net.hidden[1]", "'a'"]),
        ("net.hidden=[0]", ["net.hidden[0] must be above 0, got 0"]),
        ("env.kwargs=3", ["env.kwargs must be a mapping"]),
        ("env.kwargs={1: 2}", ["a name in env.kwargs must be text, got 1"]),
        ("replay=3", ["replay must be a mapping, got 3"]),
        ("run.callbacks=[print]", ["module:name", "'print'"]),
        ("algo=pop", ["algo.name must be one of dqn", "'pop'", "did you mean 'ppo'?"]),
        ("selfplay.opponents={past: x}", ["selfplay.opponents.past must be a number", "'x'"]),
        ("learner.device=gpu", ["auto, cpu or cuda:N", "'gpu'", "rookery doctor"]),
        ("report.wandb_mode=ofline", ["did you mean 'offline'?"]),
        ("run.mode=turbo", ["one of single", "'turbo'"]),
        ("run.env_steps=0", ["run.env_steps must be above 0, got 0"]),
        ("run.env_steps=-5", ["run.env_steps must be above 0, got -5"]),
        ("run.minutes=0", ["run.minutes must be above 0"]),
        ("run.seed=-1", ["run.seed must be at least 0, got -1"]),
        ("replay.capacity=0", ["replay.capacity must be above 0, got 0"]),
        (
            "replay.batch_size=60000",
            ["at most replay.capacity 50000", "60000 and 1000", "raise replay.capacity"],
        ),
        ("run.env_steps=500", ["learning would never start", "at most 500", "got 1000"]),
        ("actor.chunk=200000", ["does not fit into replay.capacity"]),
        ("algo.gamma=1.5", ["algo.gamma must be between 0.0 and 1.0, got 1.5"]),
        ("replay=dict(batch=64)", ["replay must be a mapping", "the text 'dict(batch=64)'"]),
        ("net=dict(net_arch=[64])", ["module:name", "dict(net_arch=[64])"]),
        ("env.kwargs=dict(a=1)", ["env.kwargs must be a mapping"]),
        ("run.seed=!!python/object/apply:os.getpid []", ["run.seed", "tag", "refused"]),
        ("run.seed=[1", ["--set run.seed=[1", "line 1, column 3"]),
        ("run.seed=2024-99-99", ["cannot read"]),
    ],
)
def test_a_wrong_override_is_refused_with_what_was_given_and_what_is_allowed(override, said):
    message = refusal(None, overrides=[override])

    assert [part for part in said if part not in message] == [], message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ["empty"]),
        ("# nothing but a comment\n", ["empty"]),
        ("- a\n- b\n", ["list", "mapping"]),
        ("just words", ["str", "mapping"]),
        ("run:\n  seed: 1\n  seed: 2\n", ["'seed'", "second time", "line 3, column 3"]),
        ("run: {seed: 1}\nrun: {seed: 2}\n", ["'run'", "second time", "line 2"]),
        ("run: [unclosed\nenv: 3", ["line 2"]),
        ("run:\n\tseed: 1", ["line 2, column 1"]),
        ("a: 1\n---\na: 2\n", ["single document"]),
        ("env: {id: !!python/object/apply:os.getpid []}", ["python/object", "refused", "line 1"]),
        ("env: {id: !secret x}", ["!secret", "refused"]),
        ("a: &x [1, 2]\nb: *x\n", ["alias", "line 2"]),
        ("a: &x [*x]\n", ["alias"]),
        ("env: {kwargs: " + "[" * 400, ["nested too deeply"]),
        (b"name: caf\xe9\n", ["UTF-8"]),
        (b"name: \x00\n", ["cannot be read"]),
        (b"#" * 1_000_001, ["larger than 1000000 bytes"]),
        ("run: {seed: !!int x}", ["cannot read"]),
        ("? [a, b]\n: 1\n", ["unhashable"]),
        ("batch_size: 3", ["unknown setting 'batch_size'", "did you mean replay.batch_size?"]),
        ("1: 2", ["unknown setting '1'"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(file, content, said):
    path = file(content)

    message = refusal(path)

    assert [part for part in said if part not in message] == [], message


def test_a_large_file_is_not_parsed(file, monkeypatch):
    monkeypatch.setattr(loading.yaml_text, "read", lambda *_: pytest.fail("it was parsed"))

    assert "larger" in refusal(file(b"a: 1\n" * 200_001))


def test_a_python_tag_runs_nothing(file, tmp_path):
    canary = tmp_path / "canary"

    refusal(file(f"name: !!python/object/apply:os.mkdir ['{canary}']"))

    assert not canary.exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("cartpol", ["'cartpol'", "did you mean 'cartpole'?", "mountaincar"]),
        (
            "zzz",
            ["'zzz'", " acrobot, ", "cartpole, cartpole-48core,", "corridor, ddpg", ".yaml"],
        ),
        ("no/such.yaml", ["no/such.yaml", "No such file"]),
        ("scenarios/cartpole.yaml", ["no file 'scenarios/cartpole.yaml'", "mean 'cartpole'?"]),
        ("cartpol.yml", ["no file 'cartpol.yml'", "did you mean 'cartpole'?"]),
        ("scenarios/sac.yaml", ["no file", "train sac --env ID", "or rookery train sac-pendulum"]),
        ("sac", ["no environment", "rookery train sac --env ID", "or rookery train sac-pendulum"]),
        ("sacc", ["'sacc'", "did you mean 'sac'? sac is an algorithm", "Packaged: "]),
        ("r2d2", ["rookery train r2d2 --env ID (in Python env=...), or rookery train recall"]),
        (Path("nothing"), ["nothing", "No such file"]),
        ("x" * 5000, ["no scenario"]),
        ("a\0b.yaml", ["cannot read settings"]),
    ],
)
def test_a_missing_source_is_refused_with_the_nearest_name(source, said):
    message = refusal(source)

    assert [part for part in said if part not in message] == [], message


@pytest.mark.parametrize("name", known())
def test_the_name_of_an_algorithm_leads_to_all_its_scenarios_and_to_none_of_sb3s(name):
    message = refusal(name)

    its = [scenario for scenario in scenarios() if load(scenario).algo.name == name]
    of_sb3 = [scenario for scenario in its if load(scenario).backend == "sb3"]
    assert f"write rookery train {name} --env ID (in Python env=...), or rookery train " in message
    assert set(re.findall(r"[\w-]+", message)) >= {*its} - {*of_sb3}
    assert "sb3-" not in message


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_name_of_an_algorithm_with_an_environment_stands_for_its_defaults(name):
    changes = {"env.id": "Pendulum-v1"}

    named = {"name": name, "algo.name": name, **changes}
    assert load(name, changes=changes) == load(changes=named)
    assert load(name, overrides=["env.id=Pendulum-v1"]).algo.name == name


def test_two_algorithms_are_refused():
    with pytest.raises(ConfigError, match=r"'sac' and 'td3'; a run has one: name one"):
        load("sac", changes={"env.id": "Pendulum-v1", "algo.name": "td3"})


def test_a_run_folder_is_no_scenario_but_may_be_resumed(tmp_path):
    assert f"rookery train --resume {tmp_path}" in refusal(str(tmp_path))


def test_other_libraries_names_are_none_of_ours_and_lead_to_settings_that_there_are():
    known = set(keys())
    for name, ours in NAMES_ELSEWHERE.items():
        named = re.findall(r"[a-z0-9_]+\.[a-z_]+", ours)

        assert named
        assert set(named) <= known
        ppo = {"ent_coef"}  # ours for an actor-critic; for SAC it is another setting
        assert name not in {key.rpartition(".")[2] for key in known} - ppo


def test_a_setting_of_another_algorithm_is_not_what_was_meant():
    assert "did you mean algo.clip_range" not in refusal(
        "cartpole", overrides=["algo.clip_range=0.2"]
    )


def test_a_change_below_a_single_value_is_refused():
    assert "single value, 128" in refusal(Config(), changes={"replay.batch_size.x": 1})


# The way back


AWKWARD = [
    {},
    {"learner.lr": 1e-05, "replay.samples_per_insert": 1e20, "eval.target": -0.0},
    {"report.tag": "yes"},
    {"report.tag": "1e-4"},
    {"report.tag": "é \u2028 \x07 'quoted' \"twice\": # not a comment"},
    {"run.run_dir": "null", "run.callbacks": ("a:b",), "env.wrappers": ("A", {"b:C": {"d": 1}})},
    {"env.kwargs": {"a": (1, 2), "b": {"c": None}, "d": [{}], "e": 1e-7, "f": "2024-01-01"}},
    {"net.hidden": (), "net.custom": "a:b", "replay.sampling": "prioritized"},
    {"run.seed": 2**62},
]


@pytest.mark.parametrize("changes", AWKWARD, ids=range(len(AWKWARD)))
def test_what_is_dumped_loads_to_an_equal_config(file, changes):
    config = load("cartpole", changes=changes)

    assert load(file(dump(config))) == config


def test_shared_values_are_written_out_twice(file):
    shared = [1, 2]
    config = load(None, changes={"env.kwargs": {"a": shared, "b": shared}})

    assert load(file(dump(config), "custom.yaml")) == config


def test_what_yaml_has_no_word_for_cannot_be_dumped():
    config = load(None, changes={"env.kwargs": {"a": object()}})

    with pytest.raises(ConfigError, match="cannot be written down"):
        dump(config)


def test_as_dict_is_plain_data():
    plain = as_dict(load("corridor"))

    assert plain["run"]["mode"] == "single"
    assert type(plain["run"]["mode"]) is str
    assert plain["net"]["hidden"] == [32]


def test_differences_name_exactly_what_changed():
    before = load()
    after = load(overrides=["replay.batch_size=32", "env.kwargs.x=1", "net.hidden=[8]"])

    assert differences(before, before) == []
    assert differences(before, after) == [
        ("env.kwargs", {}, {"x": 1}),
        ("net.hidden", [256, 256], [8]),
        ("replay.batch_size", 128, 32),
    ]


# Runs


def test_a_run_folder_gives_its_settings_back(tmp_path):
    config = load("corridor", changes={"run.seed": 4})
    (tmp_path / loading.RUN_FILE).write_text(dump(config))

    assert load_run(tmp_path) == config
    assert load_run(str(tmp_path), overrides=["run.env_steps=99999"]).run.env_steps == 99999


def test_settings_of_a_run_of_another_version_are_refused_with_their_file(tmp_path):
    (tmp_path / RUN_FILE).write_text("replay: {warmup: 5}\n")

    with pytest.raises(ConfigError, match=r"cannot read the settings stored in .*'replay\.warmup'"):
        load_run(tmp_path)


def test_a_wrong_change_to_a_run_is_not_blamed_on_its_file(tmp_path):
    (tmp_path / RUN_FILE).write_text("run: {seed: 3}\n")

    with pytest.raises(ConfigError, match=r"^unknown setting 'replay\.warmup'"):
        load_run(tmp_path, overrides=["replay.warmup=5"])


@pytest.mark.parametrize("name", [".", "absent"])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="run folder"):
        load_run(tmp_path / name)


def test_loading_settings_imports_nothing_heavy():
    code = "import sys, rookery.config.load; print(*{m.split('.')[0] for m in sys.modules})"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {"numpy", "torch", "gymnasium", "numba", "ray"}.isdisjoint(names.stdout.split())


def test_another_environment_does_not_inherit_arguments():
    assert load("corridor").env.kwargs == {"length": 8}
    assert load("corridor", overrides=["env.id=CartPole-v1"]).env.kwargs == {}
    assert load("corridor", overrides=["env={id: CartPole-v1}"]).env.kwargs == {}
    given = load("corridor", overrides=["env.kwargs={a: 1}"], changes={"env.id": "CartPole-v1"})
    assert given.env.kwargs == {"a": 1}


def test_the_page_of_names_has_every_name_of_the_tables():
    page = (Path(__file__).parents[3] / "docs/names.md").read_text()

    assert [name for name in NAMES_ELSEWHERE if f"`{name}`" not in page] == []


def test_objects_in_arguments_of_an_environment_stay_what_they_are():
    class Colour(Enum):
        RED = 1

    @dataclass
    class Board:
        size: int = 3

    config = load(changes={"env.kwargs": {"colour": Colour.RED, "board": Board()}})

    assert config.env.kwargs == {"colour": Colour.RED, "board": Board()}


@pytest.mark.parametrize(
    ("algorithm", "hint"), [("ppo", "did you mean algo.clip_range? "), ("dqn", "")]
)
def test_only_names_that_are_near_are_suggested(algorithm, hint):
    message = refusal(None, overrides=[f"algo={algorithm}", "algo.clip=0.1"])

    assert f"unknown setting 'algo.clip'; {hint}allowed in algo: " in message

"""Policies of real runs in one file: loaded again, run as graphs, and refused where they differ."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rookery
from inline_runs import TINY, Inline
from rookery.algorithms import build_algorithm
from rookery.cli.main import main
from rookery.config.algorithms import ALGORITHMS
from rookery.config.load import load, load_run
from rookery.config.schema import EnvConfig
from rookery.envs.make import make
from rookery.envs.spaces import spec_of
from rookery.envs.toy import basic
from rookery.errors import CheckpointError, ConfigError
from rookery.export import bundle, onnx
from rookery.export.export_policy import CHECKED, CLOSE, FORMATS, compare, export, wander
from rookery.training import launch
from rookery.types import Array, EnvSpec
from run_processes import SUPPORT

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.timeout(120)
Trained = Callable[..., Path]
Drawn = Callable[..., tuple[Path, dict[str, Any]]]
SHORT: dict[str, Any] = {"algo.length": 4, "algo.burn_in": 2, "net.memory": 8}
SMALL: dict[str, dict[str, Any]] = {
    "r2d2": {**SHORT, "algo.overlap": 2},
    "impala": {"algo.length": 4},
    "team": {**SHORT, "env.kwargs": {"agents": 3, "size": 5, "radius": 2, "steps": 20}},
}
TEAM = "rookery.pathfinding.world.team_env:Team"
TASKS = dict.fromkeys(ALGORITHMS, "Corridor") | dict.fromkeys(("td3", "ddpg", "tqc"), "Reach")
TASKS["team"] = TEAM


class Crane(basic.Toy):
    """Observations of every kind, nested; an action of two axes whose bounds are all different."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Dict(
                    {
                        "angle": spaces.Box(-9.0, 9.0, (3,), np.float64),
                        "on": spaces.MultiBinary(2),
                    }
                ),
                "gear": spaces.MultiDiscrete([3, 2], start=[1, -1]),
                "grey": spaces.Box(0, 255, (6, 7), np.uint8),
                "colour": spaces.Box(0, 255, (6, 7, 3), np.uint8),
                "load": spaces.Box(-50, 50, (), np.int32),
            }
        )
        low = np.array([[-1.0, 0.0], [2.0, -400.0]], np.float32)
        self.action_space = spaces.Box(low, np.array([[1.0, 5.0], [3.0, 400.0]], np.float32))
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset(seed=seed, options=options)

    def begin(self) -> Any:
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        reward = float(np.ravel(action)[0])
        return self.observation_space.sample(), reward, self.steps >= 20, False, {}


class Lever(Crane):
    """Its switches are counted from 7."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = spaces.Discrete(3, start=7)


class Switches(basic.Dials):
    """Dials of two places each, laid out in two rows."""

    def __init__(self) -> None:
        super().__init__(sizes=(2, 2, 2, 2))
        self.action_space: Any = spaces.MultiBinary((2, 2))

    def step(self, action: Any) -> Any:
        return super().step(np.ravel(action))


OWN: dict[str, Any] = {"Crane": Crane, "Lever": Lever, "Switches": Switches}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains a little, each pair once."""
    known: dict[Any, Path] = {}

    def train(name: str, task: str, **changes: Any) -> Path:
        key = (name, task, *sorted(changes.items()))
        if key not in known:
            known[key] = _trained(tmp_path_factory.mktemp("runs") / "run", name, task, changes)
        return known[key]

    return train


def _trained(run_dir: Path, name: str, task: str, changes: dict[str, Any]) -> Path:
    settings = {
        **TINY,
        "algo.name": name,
        "run.env_steps": 320,
        "net.hidden": [8],
        "replay.batch_size": 8,
        "replay.learning_starts": 64,
        "actor.chunk": 16,
        **SMALL.get(name, {}),
        **changes,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        return rookery.train(env=env_of(task), overrides=overrides, run_dir=run_dir).run_dir


def env_of(task: str) -> Any:
    return OWN.get(task) or getattr(basic, task, None) or task


def exported(run_dir: Path, out: Path, task: str, format: str) -> dict[str, Any]:
    return export(run_dir, out, format=format, factory=env_of(task))


@pytest.fixture(scope="module")
def drawn(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """Exports graphs, each once; returns the file and what the export answered."""
    known: dict[Any, tuple[Path, dict[str, Any]]] = {}

    def draw(name: str, task: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
        key = (name, task, *sorted(changes.items()))
        if key not in known:
            out = tmp_path_factory.mktemp("graphs") / "policy.onnx"
            known[key] = out, exported(trained(name, task, **changes), out, task, "onnx")
        return known[key]

    return draw


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_file_of_every_algorithm_acts_exactly_as_the_run_does(name, trained, tmp_path):
    run_dir, out = trained(name, TASKS[name]), tmp_path / "new" / "policy.safetensors"

    answer = exported(run_dir, out, TASKS[name], "safetensors")

    assert answer == {
        "file": str(out),
        "format": "safetensors",
        "bytes": out.stat().st_size,
        "checked": CHECKED,
        "largest_difference": 0.0,
        "ties": 0,
    }
    assert [path.name for path in out.parent.iterdir()] == ["policy.safetensors"]


PARTS = {"algo.values": "categorical", "algo.dueling": True, "algo.noisy": True}
LEVER = {"env.normalize_obs": True, **PARTS}
GRAPHS: list[tuple[str, str, dict[str, Any]]] = [
    ("dqn", "Lever", LEVER),
    ("dqn", "Pictures", {"env.frame_stack": 2, "net.image": "impala"}),
    ("sac", "Crane", {"env.frame_stack": 2, "env.normalize_obs": True}),
    ("ppo", "Switches", {}),
    ("ppo", "Reach", {"algo.shared_net": True}),
    ("r2d2", "Mixed", {}),
    ("team", TEAM, {}),
    ("team", TEAM, {"algo.talk": "none", "algo.temperature": 0.5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task", "changes"), GRAPHS, ids=lambda given: str(given)[:12])
def test_a_graph_acts_as_the_run_does(name, task, changes, drawn):
    out, answer = drawn(name, task, **changes)

    assert answer["checked"] == CHECKED >= 200
    assert answer["largest_difference"] <= CLOSE
    assert answer["ties"] < 3
    assert [path.name for path in out.parent.iterdir()] == ["policy.onnx"]  # the weights are inside


def test_a_graph_takes_any_number_of_observations_as_the_environment_gives_them(trained, drawn):
    out, _ = drawn("dqn", "Lever", **LEVER)
    session = onnxruntime.InferenceSession(out)
    policy, env = rookery.load(trained("dqn", "Lever", **LEVER), env=Lever), Lever()
    env.observation_space.seed(5)
    seen: list[Any] = [env.observation_space.sample() for _ in range(7)]

    (action,) = session.run(
        None,
        {
            "arm/angle": np.stack([obs["arm"]["angle"] for obs in seen]),
            "arm/on": np.stack([obs["arm"]["on"] for obs in seen]),
            **{key: np.stack([obs[key] for obs in seen]) for key in seen[0] if key != "arm"},
        },
    )

    assert action.dtype == np.int64
    assert action.tolist() == [policy.act(obs)[0] for obs in seen]
    assert set(action.tolist()) <= {7, 8, 9}


@pytest.mark.slow
def test_a_policy_that_samples_does_so_in_python_and_in_a_graph(trained, drawn):
    """Their shares of each action differ by less than six standard deviations of 600 samples."""
    settings = {"algo.talk": "none", "algo.temperature": 0.5}
    out, _ = drawn("team", TEAM, **settings)
    run_dir = trained("team", TEAM, **settings)
    policy, envs = rookery.load(run_dir), make(load_run(run_dir).env, 1)
    content = bundle.PolicyBundle(load_run(run_dir), envs.codec, envs.spec, {})
    session, obs = onnx.OnnxSession(out, content), envs.codec.decode_one(envs.reset(0))
    envs.close()

    sampled, drawn_too = (
        np.stack([read.act(obs)[0] for _ in range(600)]) for read in (policy, session)
    )
    greedy = policy.act(obs, deterministic=True)[0]

    assert len(np.unique(sampled[:, 0])) > 1
    for choice in range(5):
        share, other = (np.mean(each == choice, axis=0) for each in (sampled, drawn_too))
        np.testing.assert_allclose(share, other, atol=6 * 0.5 * np.sqrt(2 / 600))
    assert session.act(obs, deterministic=True)[0].tolist() == greedy.tolist()


def test_a_recurrent_graph_hands_its_memory_on(drawn):
    out, _ = drawn("r2d2", "Mixed")
    session = onnxruntime.InferenceSession(out)

    assert [given.name for given in session.get_inputs()][-1] == "memory"
    assert [given.name for given in session.get_outputs()] == ["action", "memory_out"]
    width = session.get_inputs()[-1].shape[1]
    obs = make(EnvConfig(id="rookery.envs.toy.basic:Mixed"), 2).codec.observation_space.sample()
    feed = {key: np.asarray(part)[None] for key, part in obs.items()}
    _, once = session.run(None, {**feed, "memory": np.zeros((1, width), np.float32)})
    _, twice = session.run(None, {**feed, "memory": once})
    assert once.any()
    assert not np.array_equal(once, twice)


# The check. What is written is changed on purpose: it must be seen, and nothing may be left.


def turned(arrays: Any) -> dict[str, Array]:
    """Returns weights that like what others do not."""
    return {name: -array if "out." in name else array for name, array in arrays.items()}


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_a_file_that_acts_otherwise_is_removed_with_exit_code_3(
    format, trained, tmp_path, monkeypatch, capsys
):
    run_dir, out = trained("dqn", "Corridor"), tmp_path / f"policy.{format}"
    out.write_text("an earlier one")
    write, draw = bundle.write, onnx.write

    def wrong(path: Path, content: Any) -> None:
        write(path, content._replace(arrays=turned(content.arrays)))

    def askew(path: Path, content: Any, algorithm: Any) -> None:
        algorithm.acting.body.out.weight.data.neg_()
        algorithm.acting.body.out.bias.data.neg_()
        draw(path, content, algorithm)

    monkeypatch.setattr(bundle, "write", wrong)
    monkeypatch.setitem(FORMATS, "onnx", FORMATS["onnx"]._replace(write=askew))

    assert main(["export", str(run_dir), "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert "the run's policy returns" in said
    assert "the file was removed" in said
    assert out.read_text() == "an earlier one"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("change", [2e-4, 0.5])
def test_a_small_change_of_a_continuous_policy_is_seen_too(change, trained, tmp_path, monkeypatch):
    run_dir, write = trained("ddpg", "Reach"), bundle.write

    def wrong(path: Path, content: Any) -> None:
        arrays = {k: v + np.float32(change) * ("out.bias" in k) for k, v in content.arrays.items()}
        write(path, content._replace(arrays=arrays))

    monkeypatch.setattr(bundle, "write", wrong)
    with pytest.raises(CheckpointError, match="continuous actions to 1e-05"):
        export(run_dir, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


class Says:
    """A policy that always chooses one thing, by scores that are always the same."""

    def __init__(self, action: int, scores: list[float]):
        self.action, self.numbers = action, scores

    def act(
        self, obs: Any, state: Any = None, deterministic: bool | None = None
    ) -> tuple[Any, Any]:
        return self.action, None

    def scores(self, obs: Any, state: Any = None) -> Any:
        if not self.numbers:
            raise ConfigError("there are none")
        return np.array(self.numbers)


def test_choices_of_equal_worth_are_counted_and_others_are_refused():
    envs = make(EnvConfig(id="rookery.envs.toy.basic:Corridor"), 1)
    seen = [(np.zeros(8), True)] * 9

    close: Any = Says(1, [3.000001, 3.0])
    assert compare(close, Says(0, []), envs, iter(seen)).ties == 9
    assert compare(close, Says(1, []), envs, iter(seen)).ties == 0
    for scores, other in (([3.0, 3.1], 0), ([], 0), ([3.0, 3.0], 2)):  # there is no 2
        apart: Any = Says(1, scores)
        with pytest.raises(CheckpointError, match="observation 1 of"):
            compare(apart, Says(other, []), envs, iter(seen))


def test_what_both_are_asked_about_is_not_only_where_the_policy_goes():
    config = load(changes={"env.id": "rookery.envs.toy.basic:Corridor", "net.hidden": [4]})
    envs = make(config.env, 1)
    algorithm: Any = build_algorithm(config, envs.spec)
    algorithm.online.body.out.weight.data.zero_()
    algorithm.online.body.out.bias.data.copy_(torch.tensor([1.0, 0.0]))  # always to the left

    walks = [list(wander(envs, algorithm, seed)) for seed in (0, 0, 1)]

    places = [[int(obs.argmax()) for obs, _ in walk] for walk in walks]
    assert places[0] == places[1] != places[2]
    assert len(places[0]) == CHECKED >= 200
    assert len(set(places[0])) > 3
    assert [fresh for _, fresh in walks[0]].count(True) > 1  # episodes of at most 100 steps


# Elsewhere.

FRESH = """
import json, sys
import numpy as np
import rookery

policy = rookery.load(sys.argv[1])
answers = [policy.act(np.array(obs, np.float32))[0] for obs in json.load(sys.stdin)]
print(json.dumps([int(answer) for answer in answers]))
"""


def test_a_file_is_all_that_another_process_needs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    run_dir = _trained(tmp_path / "run", "dqn", "misbehaving_envs:Wander", {})
    out, seen = tmp_path / "policy.safetensors", np.random.default_rng(0).normal(size=(40, 2)) * 9
    export(run_dir, out)
    policy = rookery.load(run_dir)
    wanted = [int(policy.act(obs.astype(np.float32))[0]) for obs in seen]
    run_dir.rename(tmp_path / "gone")

    done = subprocess.run(
        [sys.executable, "-c", FRESH, out],  # where no strange_envs can be imported
        input=json.dumps(seen.tolist()),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=tmp_path,
    )

    assert json.loads(done.stdout) == wanted
    assert len(set(wanted)) == 2


def test_the_command_answers_in_one_line_and_says_nothing_else(trained, tmp_path, capsys):
    run_dir = trained("dqn", "Corridor")
    capsys.readouterr()

    assert main(["export", str(run_dir), "--format", "onnx", "--json"]) == 0

    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert answer["file"] == str(run_dir / "policy.onnx")
    assert list(answer) == ["file", "format", "bytes", "checked", "largest_difference", "ties"]


def test_an_algorithm_of_yours_goes_into_a_file_and_not_into_a_graph(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    run_dir = _trained(tmp_path / "run", "user_algorithm:Rewarded", "Corridor", {})

    assert export(run_dir, tmp_path / "a.safetensors")["checked"] == CHECKED
    with pytest.raises(ConfigError, match=r"Rewarded has no scores.*export it as safetensors"):
        export(run_dir, tmp_path / "a.onnx", format="onnx")
    assert not (tmp_path / "a.onnx").exists()


class Halves(nn.Module):
    """A network whose code depends on how much it is asked at once."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.layer = nn.Linear(spec.obs[0].shape[0], outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs.reshape(len(obs), -1))  # type: ignore[no-any-return]


class Picky(Halves):
    """And one whose code depends on what it is asked."""

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs if obs.sum() > 0 else -obs)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Halves, r"fixed batch size of 3 for obs|len\(\) of a tensor"),
        (Picky, "not branch on tensor values"),
    ],
)
def test_a_network_that_cannot_be_a_graph_is_refused_with_what_to_do(
    network, said, trained, tmp_path
):
    run_dir = trained("dqn", "Corridor", **{"net.custom": f"{__name__}:{network.__name__}"})

    assert exported(run_dir, tmp_path / "a.safetensors", "Corridor", "safetensors")["ties"] == 0
    with pytest.raises(rookery.RookeryError, match=said):
        exported(run_dir, tmp_path / "a.onnx", "Corridor", "onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_an_observation_with_a_name_of_the_graphs_own_is_refused():
    space = spaces.Dict({"action": spaces.Discrete(2), "b": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match=r"named action.*rename them"):
        onnx.input_names(spec_of("here", space, spaces.Discrete(2)), memory=0)

"""Every algorithm, and a user's own, in every mode on every engine, saved and resumed."""

import itertools
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inline_runs import begin, finish, inline, resume, stop_at
from loopback_cluster import loopback_cluster
from rookery.config.algorithms import ALGORITHMS, GROUP, known
from rookery.config.load import load
from rookery.config.schema import Config, Engine, Mode
from rookery.errors import ConfigError
from rookery.event import Learned
from rookery.training import LOOPS
from rookery.training.build import build_parts
from run_processes import SUPPORT

__all__ = ["inline", "loopback_cluster"]  # fixtures

pytestmark = pytest.mark.timeout(120)
STEPS = 4  # learner steps of each pair
DISCRETE: dict[str, Any] = {"env.id": "rookery.envs.toy.basic:Corridor"}
CONTINUOUS: dict[str, Any] = {"env.id": "Pendulum-v1"}
WORLD = {"curriculum": {"agents": [1, 2], "sizes": [4], "history": 2}, "radius": 2, "steps": 9}
TEAM: dict[str, Any] = {"env.id": "rookery.pathfinding.world.team_env:Team", "env.kwargs": WORLD}
TASKS: dict[str, tuple[dict[str, Any], ...]] = {
    "sac": (DISCRETE, CONTINUOUS),
    "tqc": (CONTINUOUS,),
    "td3": (CONTINUOUS,),
    "ddpg": (CONTINUOUS,),
    "ppo": (DISCRETE, CONTINUOUS, {"env.id": "rookery.envs.toy.basic:Dials"}),
    "team": (TEAM,),
}
SMALL: dict[str, dict[str, Any]] = {
    "r2d2": {"algo.length": 4, "algo.burn_in": 2, "algo.overlap": 2, "net.memory": 8},
    "impala": {"algo.length": 4},
    "team": {"algo.length": 4, "algo.burn_in": 2, "algo.width": 4, "net.memory": 8},
}
HERE = [(mode, Engine.INLINE) for mode in (Mode.SINGLE, Mode.SYNC, Mode.ASYNC)]
BESIDE = [(mode, Engine.PROCESSES) for mode in (Mode.SYNC, Mode.ASYNC)]
PAIRS = [(name, task) for name in ALGORITHMS for task in TASKS.get(name, (DISCRETE,))]
NAMES = [f"{name}-{task['env.id'].rpartition(':')[2]}" for name, task in PAIRS]


def settings(name: str, task: dict[str, Any], mode: Mode, engine: Engine) -> dict[str, Any]:
    return {
        **task,
        "algo.name": name,
        "run.mode": mode.value,
        "run.engine": engine.value,
        "actor.num": 1 if mode is Mode.SINGLE else 2,
        "actor.envs": 2,
        "actor.chunk": 16,
        "net.hidden": [8],
        "replay.capacity": 1_000,
        "replay.learning_starts": 64,
        "replay.batch_size": 8,
        "replay.samples_per_insert": 4.0,
        "learner.device": "cpu",
        **SMALL.get(name, {}),
    }


def on_policy(name: str) -> bool:
    return ALGORITHMS[name].settings.on_policy


def learns(config: Config) -> None:
    """Goes on until there were a few learner steps."""
    with closing(build_parts(config)) as parts:
        before = parts.learner.weights_sha256()
        events = (e for e in LOOPS[config.run.mode](parts) if isinstance(e, Learned))
        learned = list(itertools.islice(events, STEPS))

        assert all(event.result.metrics for event in learned), "a step was skipped"
        assert parts.learner.weights_sha256() != before


def task_of(name: str) -> dict[str, Any]:
    return TASKS.get(name, (DISCRETE,))[0]


@pytest.mark.parametrize(("mode", "engine"), HERE)
@pytest.mark.parametrize(("name", "task"), PAIRS, ids=NAMES)
def test_every_algorithm_learns_in_every_loop(name, task, mode, engine):
    if on_policy(name) and mode is Mode.ASYNC:
        with pytest.raises(ConfigError, match=r"run\.mode single or sync only, got async.*impala"):
            load(changes=settings(name, task, mode, engine))
    else:
        learns(load(changes=settings(name, task, mode, engine)))


@pytest.mark.parametrize(("mode", "engine"), BESIDE)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_from_actors_in_processes(name, mode, engine):
    if on_policy(name) and mode is Mode.ASYNC:
        pytest.skip("refused: see above")
    learns(load(changes=settings(name, task_of(name), mode, engine)))


def clustered(name: str) -> dict[str, Any]:
    """Returns the settings of a run with one host worker."""
    mode = Mode.SYNC if on_policy(name) else Mode.ASYNC
    return settings(name, task_of(name), mode, Engine.RAY) | {"actor.num": 1}


@pytest.mark.usefixtures("loopback_cluster")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_from_host_workers(name):
    """Ray carries what it is given: see test_ray_runs for DQN and test_rollout_runs for PPO."""
    learns(load(changes=clustered(name)))


# Saved and resumed. What an interrupt leaves is exact where environments export their state.


def interrupted(name: str, task: dict[str, Any], where: Path) -> tuple[dict[str, Any], ...]:
    """Returns the answers of a run that was not interrupted, and of one that was."""
    changes = settings(name, task, Mode.SINGLE, Engine.INLINE)
    changes |= {"run.env_steps": 320, "checkpoint.period": 96}
    with begin(where / "whole", changes) as training_run:
        whole = finish(training_run)
    with begin(where / "halves", changes) as training_run:
        finish(training_run, stop_at(29))
    with resume(where / "halves", exact="Corridor" not in task["env.id"]) as training_run:
        return whole, finish(training_run)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("name", "task"), PAIRS, ids=NAMES)
def test_every_algorithm_resumes_exactly(name, task, tmp_path):
    whole, halves = interrupted(name, task, tmp_path)

    assert whole["learner_steps"] > 10
    assert halves["learner_steps"] == whole["learner_steps"]
    assert halves["weights_sha256"] == whole["weights_sha256"]


# One from outside the package: a file, and nothing else.


@pytest.mark.parametrize(("mode", "engine"), [*HERE, *BESIDE])
def test_an_algorithm_of_yours_goes_wherever_ours_go(mode, engine, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    changes = settings("user_algorithm:Rewarded", DISCRETE, mode, engine)

    learns(load(changes=changes | {"algo.slowness": 2.0, "replay.sampling": "prioritized"}))


@pytest.mark.usefixtures("inline")
def test_an_algorithm_of_yours_resumes_exactly(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))

    whole, halves = interrupted("user_algorithm:Rewarded", DISCRETE, tmp_path)

    assert halves["weights_sha256"] == whole["weights_sha256"]


def test_a_package_may_give_its_algorithm_a_name(tmp_path, monkeypatch):
    about = tmp_path / "own_algorithm-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-algorithm\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nrewarded = user_algorithm:Rewarded\n")
    for folder in (SUPPORT, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    known.cache_clear()
    try:
        learns(load(changes=settings("rewarded", DISCRETE, Mode.SINGLE, Engine.INLINE)))
        assert known()["rewarded"].about == "Learns what is paid at once"
    finally:
        known.cache_clear()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("user_algorithm:Nobody", "cannot be imported"),
        ("no_such_module:Algorithm", "cannot be imported"),
        ("user_algorithm:Confused", "must be a frozen dataclass derived from"),
        ("sacc", "did you mean 'sac'?"),
    ],
)
def test_what_is_no_algorithm_is_refused_with_what_to_do(name, said, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))

    with pytest.raises(ConfigError, match=re.escape(said)):
        load(changes={"algo.name": name})

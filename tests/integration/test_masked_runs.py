"""Whole runs in an environment that raises where it is trespassed, and the files they leave."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from inline_runs import TINY, Inline
from masked_envs import WIDTH, Fence, random_masks
from rookery.export.export_policy import CHECKED, export
from rookery.training import launch
from rookery.types import MASK
from thread_engine import threads

__all__ = ["threads"]  # a fixture

pytestmark = pytest.mark.timeout(180)
Trained = Callable[..., Path]
SMALL: dict[str, Any] = {
    **TINY,
    "run.env_steps": 480,
    "net.hidden": [8],
    "net.memory": 8,
    "replay.batch_size": 8,
    "replay.learning_starts": 64,
    "actor.chunk": 16,
    "learner.device": "cpu",
}
RUNS: dict[str, dict[str, Any]] = {
    "dqn": {"replay.initial_priority": "actor", "replay.sampling": "prioritized"},
    "dqn, parts": {
        "algo.values": "categorical",
        "algo.dueling": True,
        "algo.noisy": True,
        "env.frame_stack": 2,
    },
    "r2d2": {"algo.length": 4, "algo.burn_in": 2, "algo.overlap": 2},
    "ppo": {"env.normalize_obs": True},
    "a2c": {"algo.shared_net": True},
    "impala": {"algo.length": 4},
    "sac": {},
}


def train(run_dir: Path, kind: str, **changes: Any) -> rookery.Run:
    settings = {**SMALL, "algo.name": kind.split(",")[0], **RUNS[kind], **changes}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return rookery.train(env="masked_envs:Fence", overrides=overrides, run_dir=run_dir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains a little, each kind once."""
    known: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(launch, "EvaluationClient", Inline)
                known[kind] = train(tmp_path_factory.mktemp("runs") / "run", kind).run_dir
        return known[kind]

    return of


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_a_policy_keeps_to_masks_while_it_trains_and_as_a_file(
    kind: str, format: str, trained: Trained, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")

    answer = export(trained(kind), tmp_path / f"policy.{format}", format=format)

    assert answer["checked"] == CHECKED
    assert answer["ties"] < 3


def test_a_graph_takes_the_mask_as_one_of_its_inputs(trained: Trained, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "policy.onnx"
    export(trained("dqn"), out, format="onnx")
    session = onnxruntime.InferenceSession(out)
    rng = np.random.default_rng(0)
    mask = random_masks(200, 5, rng) > 0
    seen = rng.normal(size=(200, WIDTH)).astype(np.float32)

    (action,) = session.run(None, {"observation": seen, MASK: mask})

    assert mask[np.arange(200), action - Fence().action_space.start].all()
    assert len(set(action.tolist())) > 1


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kind", ["dqn", "ppo", "r2d2"])
def test_one_network_for_all_actors_keeps_to_each_ones_masks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forbidden action would be the end of an actor, and of the run."""
    monkeypatch.setattr(launch, "EvaluationClient", Inline)
    many = {"actor.num": 2, "actor.envs": 2, "actor.inference": "central"}

    run = train(tmp_path / "run", kind, **many, **{"run.mode": "sync"})

    assert run.answer["env_steps"] >= SMALL["run.env_steps"]
    assert run.answer["learner_steps"] > 0

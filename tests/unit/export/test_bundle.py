"""A policy in one file: read as it was written, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file, save_file

import rookery
from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.envs.spaces import SpaceCodec, spec_of
from rookery.errors import CheckpointError, ConfigError
from rookery.export.bundle import FORMAT, KEY, PolicyBundle, read, write
from rookery.networks.named_arrays import arrays_of

BOX, CHOICE = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4, start=2)


@pytest.fixture
def payload() -> PolicyBundle:
    config = load(changes={"net.hidden": [4], "env.id": "nowhere:Absent", "env.frame_stack": 2})
    spec = spec_of("nowhere:Absent", BOX, CHOICE, frame_stack=2)
    arrays = arrays_of(build_algorithm(config, spec).acting)
    return PolicyBundle(config, SpaceCodec(BOX, CHOICE), spec, arrays)


@pytest.fixture
def file(payload, tmp_path) -> Path:
    write(tmp_path / "policy.safetensors", payload)
    return tmp_path / "policy.safetensors"


def changed(file: Path, change: dict[str, Any]) -> None:
    """Writes the file again with other entries in its header."""
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as opened:
        about = json.loads(opened.metadata()[KEY]) | change
    save_file(load_file(file), file, metadata={KEY: json.dumps(about)})


def test_a_bundle_is_read_back_unchanged(payload, file):
    back = read(file)

    assert (back.config, back.spec) == (payload.config, payload.spec)
    assert back.codec.action_space == CHOICE
    assert back.arrays.keys() == payload.arrays.keys()
    for name, array in payload.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)


def test_its_policy_acts_in_the_form_of_an_environment_that_is_not_there(file):
    policy = rookery.load(file)
    action, state = policy.act(np.zeros(3, np.float32))
    again, _ = policy.act(np.ones(3, np.float32), state)

    assert {int(action), int(again)} <= {2, 3, 4, 5}
    assert policy.scores(np.zeros(3, np.float32)).argmax() + 2 == action


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": FORMAT + 1}, "load it with the release that wrote it"),
        ({"sha256": "0" * 64}, "do not match their checksum"),
        ({"config": {"replay": {"batch_size": "many"}}}, "replay.batch_size"),
        ({"config": None, "spec": {}}, "does not describe a policy"),
        ({"action_space": {"space": "Tuple"}}, "describes no space"),
        (
            {"observation_space": {"space": "Discrete", "n": 3, "start": 0}},
            "does not match its spac",
        ),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change, said, file):
    changed(file, change)

    with pytest.raises(CheckpointError, match=said):
        read(file)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff" * 4_000, b"\x02" + b"\0" * 7 + b"{}"])
def test_what_is_no_bundle_is_refused_with_advice(content, tmp_path):
    (tmp_path / "a").write_bytes(content)

    with pytest.raises(
        CheckpointError, match=r"cannot be read as a policy.*`rookery export` wrote"
    ):
        rookery.load(tmp_path / "a")


def test_a_file_that_was_cut_or_changed_is_refused(file):
    whole = file.read_bytes()
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"cannot be read as a policy|their checksum"):
            read(file)


def test_arrays_of_another_network_are_refused(payload, file):
    write(file, payload._replace(arrays={"weight": np.zeros(3, np.float32)}))

    with pytest.raises(CheckpointError, match="of another network"):
        rookery.load(file)


@pytest.mark.parametrize("given", [{"checkpoint": "last"}, {"env": "CartPole-v1"}])
def test_a_file_has_neither_checkpoints_nor_an_environment(given, file):
    with pytest.raises(ConfigError, match="leave them out, or give the run folder"):
        rookery.load(file, **given)


@pytest.mark.parametrize("samples", [False, True])
def test_a_policy_acts_as_it_is_evaluated_unless_told(samples, file, monkeypatch):
    policy = rookery.load(file)
    policy.algorithm.evaluate_stochastic = samples
    asked: list[dict[str, Any]] = []
    act = policy.algorithm.act

    def noted(obs: Any, rng: Any, **how: Any) -> Any:
        asked.append(how)
        return act(obs, rng, **how)

    monkeypatch.setattr(policy.algorithm, "act", noted)
    for deterministic in (None, True, False):
        policy.act(np.zeros(3, np.float32), deterministic=deterministic)

    assert [how["noise"] for how in asked] == [samples, False, True]
    assert [how["epsilon"] > 0 for how in asked] == [False, False, True]

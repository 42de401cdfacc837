"""Players made of snapshots: greedy, within the mask, ties at random; files are found by name."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from heap_games import Heaps
from rookery.actors.policy import InferencePolicy, Recipe
from rookery.config.load import load
from rookery.envs.spaces import SpaceCodec
from rookery.envs.turn_based.game import MASK
from rookery.errors import CheckpointError, ConfigError, EnvError
from rookery.selfplay.snapshot_players import SnapshotPlayer, find, taken
from rookery.types import Array, EnvSpec

GAMES = Heaps(6)


def policy(algo: str = "dqn") -> InferencePolicy:
    """An untrained policy for `Heaps`."""
    config = load(None, changes={"algo.name": algo, "net.hidden": [8]})
    codec = SpaceCodec(GAMES.observation_space, GAMES.action_space)
    return InferencePolicy(Recipe(config), EnvSpec("heaps", codec.leaves, codec.action), codec)


def fixed(preferences: list[float]) -> SnapshotPlayer:
    """A player whose values of the three actions are these, whatever it sees."""
    made = policy()
    weights = {name: np.zeros_like(array) for name, array in made.get_weights().items()}
    (last,) = [name for name in weights if name.endswith("out.bias")]
    weights[last][-3:] = preferences
    made.set_weights(weights)
    return SnapshotPlayer(made)


def seen(left: list[int]) -> dict[str, Array]:
    games = Heaps(len(left))
    games.left[:] = left
    return games.look(np.arange(len(left)), np.zeros(len(left), dtype=np.int64))


def test_it_does_what_it_values_most():
    assert fixed([0.0, 2.0, 1.0]).act(seen([9, 8]), np.random.default_rng(0)).tolist() == [1, 1]


def test_a_forbidden_action_is_never_the_best():
    assert fixed([-3.0, 2.0, 5.0]).act(seen([1, 2, 3]), np.random.default_rng(0)).tolist() == [
        0,
        1,
        2,
    ]


def test_an_algorithm_whose_scores_do_not_know_of_masks_is_kept_to_them():
    made = policy()

    class Blind(type(made.algorithm)):
        def scores(self, obs, memory=None):
            return torch.tensor([[0.0, 1.0, 9.0]]), None

    made.algorithm.__class__ = Blind

    assert SnapshotPlayer(made).act(seen([2]), np.random.default_rng(0)).tolist() == [1]


def test_ties_are_broken_at_random_among_the_allowed():
    player, rng = fixed([1.0, 1.0, 1.0]), np.random.default_rng(0)

    took = np.array([player.act(seen([1, 2, 9]), rng) for _ in range(300)])

    assert set(took[:, 0]) == {0}
    assert np.bincount(took[:, 1], minlength=3).min() == 0
    assert np.bincount(took[:, 1])[:2].min() > 100
    assert np.bincount(took[:, 2]).min() > 60


def test_the_same_generator_breaks_ties_in_the_same_way():
    player = fixed([1.0, 1.0, 1.0])

    one, other = (player.act(seen([9] * 20), np.random.default_rng(3)) for _ in range(2))

    assert one.tolist() == other.tolist()


def test_without_ties_it_does_what_the_algorithm_does_without_noise():
    made = policy()
    obs = seen([9, 8, 5, 3, 2, 1])
    stored = made.codec.encode(obs, 6)

    took = SnapshotPlayer(made).act(obs, np.random.default_rng(0))

    acted = made.algorithm.act(stored, np.random.default_rng(0), noise=False).action
    assert took.tolist() == acted.tolist()


def test_an_empty_mask_is_an_error_that_says_so():
    obs = seen([9])
    obs[MASK][:] = 0

    with pytest.raises(EnvError, match="at least one allowed action"):
        fixed([1.0, 2.0, 3.0]).act(obs, np.random.default_rng(0))


def test_weights_that_have_diverged_are_not_mistaken_for_an_empty_mask():
    with pytest.raises(CheckpointError, match="diverged"):
        fixed([np.nan, 1.0, 1.0]).act(seen([9]), np.random.default_rng(0))


def put(folder, version: int, **about: object) -> None:
    folder.mkdir(exist_ok=True)
    told = {"version": version, "learner_steps": 10 * version, "env_steps": 100 * version} | about
    save_file(
        {"w": np.full(2, version, dtype=np.float32)},
        folder / f"v{version:09d}.safetensors",
        metadata={name: str(value) for name, value in told.items()},
    )


def test_snapshots_are_found_oldest_first_with_when_they_were_taken(tmp_path):
    for version in (12, 3):
        put(tmp_path / "opponents", version)
    (tmp_path / "opponents" / "notes.txt").write_text("not one")

    found = taken(tmp_path)

    assert [(s.name, s.version, s.learner_steps, s.env_steps) for s in found] == [
        ("v3", 3, 30, 300),
        ("v12", 12, 120, 1200),
    ]
    assert found[1].read()["w"].tolist() == [12.0, 12.0]


def test_a_run_without_snapshots_has_none(tmp_path):
    assert taken(tmp_path) == []


def test_a_name_that_no_snapshot_has_is_refused_with_those_there_are(tmp_path):
    put(tmp_path / "opponents", 3)

    assert find(tmp_path, "v3").version == 3
    with pytest.raises(ConfigError, match=r"'v4'.*v3, .*latest and best"):
        find(tmp_path, "v4")


def test_a_broken_snapshot_is_named(tmp_path):
    put(tmp_path / "opponents", 3)
    path = tmp_path / "opponents" / "v000000003.safetensors"
    path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(CheckpointError, match="v000000003"):
        taken(tmp_path)


def test_a_snapshot_that_says_nothing_of_itself_is_named(tmp_path):
    (tmp_path / "opponents").mkdir()
    save_file({"w": np.zeros(2)}, tmp_path / "opponents" / "v000000007.safetensors")

    with pytest.raises(CheckpointError, match="v000000007"):
        taken(tmp_path)

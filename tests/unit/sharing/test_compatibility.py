"""Terms: what buffers of a pool must have in common, and what may differ."""

import json

import pytest

from rookery.replay.ring import FORMAT, paired_schema
from rookery.sharing.compatibility import differences, terms_of
from rookery.types import ActionSpec

REWARD = {"scale": 1.0, "clip": None, "tag": None}
SCHEMA = paired_schema({"image": ((8, 8), "uint8"), "speed": ((), "float32")}, ((), "int64"))
TERMS = terms_of(SCHEMA, ActionSpec(n=3), reward=REWARD, env="A-v1", space="Dict(...)")


def test_terms_name_every_leaf_of_an_observation_and_nothing_else_of_a_row() -> None:
    assert TERMS["observation"] == {"obs.image": [[8, 8], "uint8"], "obs.speed": [[], "float32"]}
    assert TERMS["ring format"] == FORMAT


def test_terms_survive_being_written() -> None:
    assert differences(json.loads(json.dumps(TERMS)), TERMS) == []


def test_choices_and_motions_are_told_apart_by_what_they_are() -> None:
    motion = ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    moving = terms_of(SCHEMA, motion, reward=REWARD)
    assert moving["action"] == {"shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    said = differences(TERMS, moving)
    assert "action choices: this buffer has 3, the pool has None" in said
    assert "action shape: this buffer has None, the pool has [2]" in said


def test_several_choices_must_agree_in_every_size() -> None:
    one, other, single = (
        terms_of(SCHEMA, action, reward=REWARD)
        for action in (
            ActionSpec(shape=(2,), sizes=(3, 4)),
            ActionSpec(shape=(2,), sizes=(4, 3)),
            ActionSpec(n=12),
        )
    )
    assert differences(json.loads(json.dumps(one)), one) == []
    assert differences(one, other) == [
        "action choices: this buffer has [3, 4], the pool has [4, 3]"
    ]
    assert differences(one, single) == ["action choices: this buffer has [3, 4], the pool has 12"]


@pytest.mark.parametrize(
    ("name", "mine", "theirs", "said"),
    [
        ("environment", "A-v1", "B-v1", "environment: this buffer has 'A-v1', the pool has 'B-v1'"),
        ("ring format", 1, 2, "ring format: this buffer has 1, the pool has 2"),
        ("reward", {"scale": 1.0}, {"scale": 0.1}, "reward scale: this buffer has 1.0, the pool"),
        ("observation space", "Box(1)", "Box(2)", "observation space: this buffer has 'Box(1)'"),
        ("action", {"low": [0.0]}, {"low": [-1.0]}, "action low: this buffer has [0.0]"),
        ("observation", {"obs": [[3], "f4"]}, {"obs": [[4], "f4"]}, "observation obs: this buffer"),
    ],
)
def test_a_difference_says_what_each_side_has(name, mine, theirs, said) -> None:
    (found,) = differences(TERMS | {name: mine}, TERMS | {name: theirs})
    assert found.startswith(said)


def test_every_difference_is_said() -> None:
    other = TERMS | {"environment": "B-v1", "reward": REWARD | {"scale": 2.0, "tag": "norm"}}
    assert [said.partition(":")[0] for said in differences(TERMS, other)] == [
        "environment",
        "reward scale",
        "reward tag",
    ]


@pytest.mark.parametrize("name", ["environment", "observation space"])
def test_what_one_side_does_not_know_is_no_difference(name) -> None:
    unknown, missing = TERMS | {name: None}, {k: v for k, v in TERMS.items() if k != name}
    for other in (unknown, missing):
        assert differences(TERMS, other) == []
        assert differences(other, TERMS) == []


def test_gamma_and_n_step_are_nobodys_business() -> None:
    assert not {"gamma", "n_step", "discount"} & set(TERMS)

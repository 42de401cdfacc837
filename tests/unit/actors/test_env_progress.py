"""What is known of how far environments have come, by the actors that play them."""

import json
from typing import Any

import pytest

from misbehaving_envs import Maturing
from rookery.actors.actor_group import ActorGroupState
from rookery.actors.env_progress import EnvProgress, Progress
from rookery.config.load import load
from rookery.training.build import build_parts
from rookery.training.run_state import _actors_state


def test_the_newest_of_each_actor_is_kept():
    progress = Progress()
    for actor, level in ((1, "first"), (0, "first"), (1, "second")):
        progress.take(EnvProgress(actor, [level]))

    assert progress.state() == [EnvProgress(0, ["first"]), EnvProgress(1, ["second"])]
    assert progress.of(1) == ["second"]


def test_before_the_first_report_there_is_none():
    assert Progress().of(3) is None
    assert Progress().state() == []


@pytest.mark.parametrize(("actor", "found"), [(0, "a"), (1, "c"), (2, "c"), (3, "c"), (4, "a")])
def test_who_has_none_takes_turns_at_the_others(actor: int, found: str):
    progress = Progress([EnvProgress(0, ["a"]), EnvProgress(2, ["c"])])

    assert progress.of(actor) == [found]


def test_it_survives_json():
    progress = Progress([EnvProgress(4, [{"results": [[1, 10, [1, 0]]]}, None])])

    again = Progress(json.loads(json.dumps(progress.state())))

    assert again.state() == progress.state()


def test_in_async_a_checkpoint_has_it_although_it_has_no_actors():
    changes: dict[str, Any] = {
        "run.mode": "async",
        "run.engine": "inline",
        "actor.num": 2,
        "env.check": False,
        "env.kwargs": {},
    }
    told = [EnvProgress(1, [{"begun": 9}])]
    parts = build_parts(
        load("corridor", changes=changes),
        factory=Maturing,
        saved=ActorGroupState((), progress=told),
    )
    state, _ = _actors_state(parts)
    parts.close()

    assert state.to_checkpoint() == ({"incarnations": [1, 1], "progress": told}, {})

"""What is known of how far environments have come, by the actors that play them."""

import json
from typing import Any

import pytest

from rookery.config.load import load
from rookery.loops.progress import Progress, Standing
from rookery.loops.restore import _crew_state
from rookery.loops.wiring import wire
from strange_envs import Maturing


def test_the_newest_of_each_actor_is_kept():
    progress = Progress()
    for actor, lesson in ((1, "first"), (0, "first"), (1, "second")):
        progress.take(Standing(actor, [lesson]))

    assert progress.state() == [Standing(0, ["first"]), Standing(1, ["second"])]
    assert progress.of(1) == ["second"]


def test_before_anybody_has_told_there_is_none():
    assert Progress().of(3) is None
    assert Progress().state() == []


@pytest.mark.parametrize(("actor", "found"), [(0, "a"), (1, "c"), (2, "c"), (3, "c"), (4, "a")])
def test_who_has_none_takes_turns_at_the_others(actor: int, found: str):
    progress = Progress([Standing(0, ["a"]), Standing(2, ["c"])])

    assert progress.of(actor) == [found]


def test_it_survives_json():
    progress = Progress([Standing(4, [{"results": [[1, 10, [1, 0]]]}, None])])

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
    told = [Standing(1, [{"begun": 9}])]
    parts = wire(load("corridor", changes=changes), factory=Maturing, progress=told)
    dealt, _ = _crew_state(parts)
    parts.close()

    assert dealt.numbers == {"incarnations": [1, 1], "progress": told}

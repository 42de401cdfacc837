"""The player: what it says where a GPU has no memory left for it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookery.config.load import load
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.loops import player
from rookery.loops.wiring import wire

KNOBS = r"actor 1 of 2; lower actor\.num, name more devices in actor\.devices, or leave it out"


def crew() -> Config:
    changes = {"run.mode": "sync", "run.engine": "inline", "actor.num": 2, "env.check": False}
    return load("corridor", changes=changes)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."),
        RuntimeError("CUDA error: out of memory"),  # where even the context does not fit
    ],
)
def test_a_network_that_does_not_fit_names_the_knobs(error: Exception, monkeypatch: Any) -> None:
    build = player.build_algorithm
    made: list[Any] = []

    def full(device: torch.device) -> None:
        raise error

    def second(*args: Any) -> Any:
        made.append(build(*args))
        if len(made) == 2:
            made[-1].networks = SimpleNamespace(to=full)
        return made[-1]

    monkeypatch.setattr(player, "build_algorithm", second)

    with pytest.raises(ConfigError, match=KNOBS) as refused:
        wire(crew())
    assert str(refused.value).startswith("GPU out of memory: ")


def test_memory_that_is_gone_while_playing_names_the_knobs(monkeypatch: Any) -> None:
    parts = wire(crew())

    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(parts.crew.actors[1].algorithm, "act", full)

    with pytest.raises(ConfigError, match=KNOBS):
        list(parts.crew.play(8, [0.0, 0.0]))
    parts.close()


def test_other_errors_stay_what_they_are(monkeypatch: Any) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(player, "build_algorithm", broken)

    with pytest.raises(RuntimeError, match="something else"):
        wire(crew())

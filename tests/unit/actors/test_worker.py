"""The player: how its news travel, and what it says where a GPU has no memory left for it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from misbehaving_envs import Maturing, Wander
from rookery.actors import worker
from rookery.actors.actor_group import ActorGroupState
from rookery.actors.env_progress import EnvProgress
from rookery.actors.messages import (
    ActorReport,
    EndedEpisodes,
    PlayChunk,
    PlayFreely,
)
from rookery.actors.worker import PROGRESS_S, ActorWorker
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.errors import ConfigError, EnvError
from rookery.event import Episode
from rookery.training.build import build_parts

PLAYED = (
    Episode(0.1 + 0.2, 22, {}),
    Episode(-0.0, 2**31 - 1, {"is_success": 1.0, "coins": float("inf")}),
    Episode(5e-324, 0),
    Episode(1e300, 1, {"coins": -3.5}),
)
KNOBS = r"actor 1 of 2; lower actor\.num, name more devices in actor\.devices, or leave it out"


def local_actors() -> Config:
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
    build = worker.build_algorithm
    made: list[Any] = []

    def full(device: torch.device) -> None:
        raise error

    def second(*args: Any) -> Any:
        made.append(build(*args))
        if len(made) == 2:
            made[-1].networks = SimpleNamespace(to=full)
        return made[-1]

    monkeypatch.setattr(worker, "build_algorithm", second)

    with pytest.raises(ConfigError, match=KNOBS) as refused:
        build_parts(local_actors())
    assert str(refused.value).startswith("GPU out of memory: ")


def test_memory_that_is_gone_while_playing_names_the_knobs(monkeypatch: Any) -> None:
    parts = build_parts(local_actors())

    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(parts.actors.seats[1].host.role.actor.algorithm, "act", full)

    with pytest.raises(ConfigError, match=KNOBS):
        list(parts.actors.collect(8, [0.0, 0.0]))
    parts.close()


def test_other_errors_stay_what_they_are(monkeypatch: Any) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(worker, "build_algorithm", broken)

    with pytest.raises(RuntimeError, match="something else"):
        build_parts(local_actors())


class TestEnded:
    def arrived(self, *episodes: Episode) -> EndedEpisodes:
        """Returns what another process gets of a report with these."""
        report = ActorReport(64, EndedEpisodes(episodes), 3)
        ended = cloudpickle.loads(cloudpickle.dumps(report)).ended
        assert isinstance(ended, EndedEpisodes)
        return ended

    @pytest.mark.parametrize("count", range(len(PLAYED) + 1))
    def test_episodes_arrive_as_they_were_in_their_order(self, count: int) -> None:
        ended = self.arrived(*PLAYED[:count])

        assert tuple(ended) == tuple(ended) == PLAYED[:count]
        assert len(ended) == count
        assert [type(value) for one in ended for value in one[:2]] == [float, int] * count

    def test_scores_arrive_bit_for_bit(self) -> None:
        scores = np.random.default_rng(0).integers(2**64, size=500, dtype=np.uint64)
        scores = scores.view(np.float64)

        ended = self.arrived(*(Episode(score, 1) for score in scores.tolist()))

        found = np.array([episode.score for episode in ended])
        assert found.tobytes() == np.array(scores.tolist()).tobytes()

    def test_episodes_without_info_have_one_of_their_own(self) -> None:
        first, second = self.arrived(Episode(1.0, 1), Episode(2.0, 2))

        assert first.info == second.info == {}
        assert first.info is not second.info

    def test_an_episode_that_arrived_is_found(self) -> None:
        ended = self.arrived(*PLAYED)

        assert PLAYED[1] in ended
        assert Episode(7.0, 7) not in ended

    def test_in_one_process_nothing_is_packed(self) -> None:
        assert EndedEpisodes(PLAYED) == PLAYED


class TestProgress:
    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda seconds: None)
        monkeypatch.setattr(worker, "time", clock)

    @pytest.fixture
    def opened(self) -> Iterator[Any]:
        """Returns the one player of a run in this process."""
        made = []

        def build(factory: Any, **options: Any) -> ActorWorker:
            changes = {
                "run.mode": "async",
                "run.engine": "inline",
                "env.check": False,
                "env.kwargs": {},
                "actor.envs": 2,
                "actor.chunk": 400,
            }
            made.append(build_parts(load("corridor", changes=changes), factory=factory, **options))
            role = made[-1].actors.seats[0].host.role
            role.actor.ring.control(True, 0.5)
            return role

        yield build
        for parts in made:
            parts.close()

    def reported(self, one: ActorWorker) -> ActorReport:
        """Plays a chunk, and returns what is said of it."""
        self.now += 2 * worker.NEWS_S
        one.actor.ring.consume(one.actor.ring.committed)
        report = one.work()
        assert report is not None
        return report

    def test_a_roaming_actor_tells_of_it_after_an_episode_and_once_in_a_while(
        self, opened: Any
    ) -> None:
        one = opened(Maturing)
        assert one.do(PlayFreely()).progress is None  # nothing has ended yet

        first = self.reported(one).progress
        soon = self.reported(one)
        self.now += PROGRESS_S
        later = self.reported(one).progress

        assert first.actor == 0
        assert soon.ended
        assert soon.progress is None
        assert len(first.envs) == 2
        assert all(b["begun"] > a["begun"] > 1 for a, b in zip(first.envs, later.envs, strict=True))

    def test_an_actor_begins_no_chunk_beyond_its_row_limit(self, opened: Any) -> None:
        """However long the learner does not look: it may be waiting for a processor."""
        one = opened(Wander)
        one.do(PlayFreely())
        ring = one.actor.ring
        before = ring.committed
        ring.control(True, 0.5, rows=500)  # a chunk has 400 steps

        for _ in range(9):
            ring.consume(ring.committed)
            one.work()

        assert 500 <= ring.committed - before < 500 + 2 * 400

    def test_where_nothing_has_ended_since_nothing_is_told(self, opened: Any) -> None:
        one = opened(Maturing)
        one.do(PlayFreely())
        self.reported(one)
        one.actor.ring.control(False, 0.5)
        self.now += PROGRESS_S

        assert self.reported(one).progress is None

    def test_environments_that_make_none_are_silent(self, opened: Any) -> None:
        one = opened(Wander)
        one.do(PlayFreely())

        report = self.reported(one)

        assert report.ended
        assert report.progress is None

    def test_one_that_plays_what_it_is_told_to_is_silent(self, opened: Any) -> None:
        assert opened(Maturing).do(PlayChunk(400, None, 0.5)).progress is None

    def test_its_environments_begin_with_what_there_is(self, opened: Any) -> None:
        told = [EnvProgress(0, [{"begun": 20}, {"begun": 30}])]
        one = opened(Maturing, saved=ActorGroupState((), progress=told))

        assert one.actor.envs.export_progress() == [{"begun": 21}, {"begun": 31}]
        assert (one.actor.view.obs[:, 0] > 10).all()  # the first episodes knew of it

    def test_what_cannot_be_told_is_a_fault_before_anything_is_played(self, opened: Any) -> None:
        class Secretive(Maturing):
            def export_progress(self) -> dict[str, Any]:
                return {"begun": object()}

        with pytest.raises(EnvError, match=r"export_progress raised TypeError.* must return JSON"):
            opened(Secretive)

"""Actors are killed, stopped, raise and hang: the run goes on, and says what happened."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

import row_lineage as lineage
from curriculum_runs import ALL, CURRICULUM_RUN, grown
from eventually import eventually
from inline_runs import begin, finish, inline
from rookery.actors import local_group
from rookery.checkpoints import checkpoint
from rookery.event import Ask, Collected, Evaluated, Event, IterationEnded, Learned, Logged, Warned
from rookery.training.run import TrainingRun
from run_processes import SMALL, CommandForker, named, nothing_new, record, settled, shared, words

__all__ = ["inline"]  # a fixture

# A learner that takes its time keeps replay from being overwritten while a process starts.
TWO_ACTORS: dict[str, Any] = {
    "run.mode": "async",
    "actor.num": 2,
    "run.env_steps": 10_000_000,
    "replay.capacity": 100_000,
    "replay.batch_size": 16,
    "replay.learning_starts": 100,
    "replay.samples_per_insert": 16.0,
    "checkpoint.period": 10_000_000,
    "eval.period": 10_000_000,
    "report.log_period": 64,
}
SYNC = {"run.mode": "sync"}


def moody(mood: str, at: int, where: str = "actors") -> dict[str, Any]:
    return {
        "env.id": "misbehaving_envs:Moody",
        "env.kwargs": {"mood": mood, "at": at, "where": where},
    }


def zombies() -> list[str]:
    """Returns the child processes that have not been waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state == "Z" and int(parent) == os.getpid():
            found.append(name)
    return found


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before, dead = shared(), zombies()
    yield
    assert nothing_new(before)
    assert set(zombies()) <= set(dead)  # others have left theirs before


class Story:
    """Does one thing after another to a run, each once its time has come, then ends it."""

    def __init__(self, *chapters: Callable[[TrainingRun], bool]):
        self._chapters, self.events = list(chapters), list[Event]()
        self.rows: dict[tuple[int, int], int] = {}  # by actor and incarnation
        self.incarnations: list[int] = []

    def look(self, training_run: TrainingRun, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, IterationEnded) and self._chapters and self._chapters[0](training_run):
            self._chapters.pop(0)
        if not self._chapters:
            training_run._asked.add(Ask.STOP)

    def run(self, run_dir: Path, settings: dict[str, Any]) -> "Story":
        with begin(run_dir, TWO_ACTORS | settings) as training_run:
            answer = finish(training_run, self.look)
            assert answer["reason"] == "callback"
            local_actors, ring = training_run.parts.actors, training_run.parts.replay.ring
            lineage.check(ring)
            self.rows, self.incarnations = lineage.counts(ring), local_actors.incarnations
            assert training_run.parts.limiter.stored == training_run.parts.counters.env_steps
        return self

    @property
    def complaints(self) -> list[str]:
        warned = [event for event in self.events if isinstance(event, Warned)]
        assert {event.kind for event in warned} <= {"actor"}
        return [event.message for event in warned]


def played(*lives: tuple[int, int]) -> Callable[[TrainingRun], bool]:
    """Waits for rows of these (actor, incarnation)."""
    return lambda training_run: lineage.counts(training_run.parts.replay.ring).keys() >= set(lives)


def send(number: int, *actors: int) -> Callable[[TrainingRun], bool]:
    def chapter(training_run: TrainingRun) -> bool:
        for actor in actors:
            os.kill(training_run.parts.actors.pids[f"actor-{actor}"], number)
        return True

    return chapter


def manage_too(training_run: TrainingRun) -> bool:
    assert training_run.evaluation_client.pid is not None
    os.kill(training_run.evaluation_client.pid, SIGKILL)
    return True


DIED = r"actor (\d) was lost \(died \(exit status -9\)\) and is replaced"


@pytest.mark.usefixtures("inline")
def test_in_sync_one_actor_is_killed_then_all_and_each_is_replaced(tmp_path):
    story = Story(
        played((0, 0), (1, 0)),
        send(SIGKILL, 1),
        played((1, 1)),
        send(SIGKILL, 0, 1),
        played((0, 1), (1, 2)),
    )

    story.run(tmp_path, SYNC)

    assert story.incarnations == [1, 2]
    assert sorted(re.fullmatch(DIED, line)[1] for line in story.complaints) == ["0", "1", "1"]
    faults = [e.metrics.get("faults/actor", 0.0) for e in story.events if isinstance(e, Logged)]
    assert faults[-1] == 3.0
    assert [entry["kind"] for entry in record(tmp_path, "warned")] == ["actor"] * 3


def test_in_async_one_actor_is_killed_then_all_and_the_evaluator_and_each_is_replaced(tmp_path):
    """The learner has learned in between, from what was there."""
    story = Story(
        played((0, 0), (1, 0)),
        send(SIGKILL, 1),
        played((1, 1)),
        manage_too,
        send(SIGKILL, 0, 1),
        played((0, 1), (1, 2)),
        lambda training_run: "evaluator" in training_run.faults,
    )

    story.run(tmp_path, {})

    assert story.incarnations == [1, 2]
    said = [event for event in story.events if isinstance(event, Warned)]
    assert sorted(e.kind for e in said) == ["actor"] * 3 + ["evaluator"]
    killed = [i for i, e in enumerate(story.events) if isinstance(e, Warned) and e.kind == "actor"]
    between = story.events[killed[0] : killed[-1]]
    assert any(isinstance(event, Learned) for event in between)


@pytest.mark.usefixtures("inline")
def test_one_that_was_stopped_for_too_long_is_replaced_and_what_it_does_later_is_not_seen(
    tmp_path,
):
    stopped: list[int] = []

    def stop(training_run: TrainingRun) -> bool:
        stopped.append(training_run.parts.actors.pids["actor-0"])
        os.kill(stopped[0], SIGSTOP)
        return True

    def wake(training_run: TrainingRun) -> bool:
        """It was killed before its successor was started: there is no process to wake."""
        with pytest.raises(ProcessLookupError):
            os.kill(stopped[0], SIGCONT)
        return True

    story = Story(played((0, 0), (1, 0)), stop, played((0, 1)), wake)

    story.run(tmp_path, {"actor.env_step_timeout_s": 3.0})

    (complaint,) = story.complaints
    assert re.match(r"actor 0 was lost \(has not moved for \d+ s \(actor.env_step", complaint)
    assert story.incarnations == [1, 0]


@pytest.mark.usefixtures("inline")
def test_a_killed_actor_is_replaced_by_one_that_continues_its_curriculum(tmp_path):
    """The first episode of an actor without progress would be one of the first task."""
    told: list[Any] = []

    def note(training_run: TrainingRun) -> bool:
        told.append(training_run.parts.actors.progress.of(1))
        return True

    def told_more(training_run: TrainingRun) -> bool:
        return training_run.parts.actors.progress.of(1) is not told[0]

    story = Story(grown, send(SIGKILL, 1), played((1, 1)), note, told_more)

    with begin(tmp_path, CURRICULUM_RUN) as training_run:
        finish(training_run, story.look)

    (killed,) = [i for i, event in enumerate(story.events) if isinstance(event, Warned)]
    assert re.fullmatch(DIED, story.complaints[0])
    assert training_run.parts.actors.incarnations == [0, 1]
    collected = [event for event in story.events[killed:] if isinstance(event, Collected)]
    episodes = [episode for event in collected for episode in event.ended]
    assert {episode.info["curriculum/agents"] for episode in episodes} == {ALL}


@pytest.mark.usefixtures("inline")
def test_an_environment_that_hangs_is_replaced_while_the_others_play_on(tmp_path):
    story = Story(played((0, 1)))

    quick = {"actor.env_step_timeout_s": 3.0, "replay.samples_per_insert": 1.0}
    story.run(tmp_path, moody("hang", 60, where="first actor") | quick)

    (complaint,) = story.complaints
    assert "has not moved" in complaint
    assert story.rows[1, 0] > 2 * story.rows[0, 0]


@pytest.mark.usefixtures("inline")
def test_an_environment_that_raises_every_few_steps_is_made_anew_each_time(tmp_path):
    """Each life brings 8 x 99 rows or a few more, and none of them is lost."""
    story = Story(lambda training_run: len(story.complaints) == 2)

    story.run(tmp_path, moody("raise", 100, where="first actor"))

    first = (
        "actor 0 was lost (EnvError: misbehaving_envs:Moody, environment 0, step 100: step raised "
    )
    assert len(story.complaints) == 2
    assert all(line.startswith(first) for line in story.complaints)
    assert all("RuntimeError: the motor is on fire" in line for line in story.complaints)
    assert story.rows[0, 0] >= 8 * 99
    assert story.rows[0, 1] >= 8 * 99


@pytest.mark.usefixtures("inline")
def test_a_slow_actor_does_not_slow_the_others(tmp_path):
    """It sleeps for 25 ms in every env step: in its time the other one plays hundreds."""
    story = Story(
        played((0, 0), (1, 0)), lambda training_run: training_run.parts.counters.env_steps > 4_000
    )

    story.run(tmp_path, moody("crawl", 0, where="first actor") | {"replay.samples_per_insert": 1.0})

    assert story.rows[1, 0] > 10 * story.rows[0, 0]
    assert story.complaints == []


def test_what_a_slow_actor_brings_too_late_is_counted_and_not_drawn(tmp_path):
    """One that plays whole chunks with old weights, beside a learner that publishes often."""
    old = {"replay.max_policy_lag": 3, "learner.publish_min_interval_s": 0.0}
    with begin(
        tmp_path, TWO_ACTORS | moody("dawdle", 0, where="first actor") | old
    ) as training_run:
        pool = training_run.parts.replay
        actors = pool.ring.columns["actor"]

        def look(training_run, event):
            slow_and_late = (actors[pool._late == 1] == 0).sum() >= 50
            quick_and_drawn = actors[pool.chains.closed == 1].any()
            if isinstance(event, IterationEnded) and slow_and_late and quick_and_drawn:
                training_run._asked.add(Ask.STOP)

        finish(training_run, look)
        assert pool.stale >= 50
        assert not (pool._late & pool.chains.closed).any()


def test_an_evaluator_that_is_slow_or_killed_does_not_touch_training(tmp_path):
    """It evaluates the newest weights when it can; training does not wait for it."""
    story = Story(lambda training_run: training_run.parts.counters.env_steps > 3_000)
    paused_s, at_news = 0.0, [0]

    def look(training_run: TrainingRun, event: Event) -> None:
        nonlocal paused_s
        story.look(training_run, event)
        if isinstance(event, Collected):
            paused_s = training_run.paused_s
        if isinstance(event, Evaluated):
            assert event.counters.env_steps >= at_news[-1], "not the newest weights"
            at_news.append(training_run.parts.counters.env_steps)
            if len(at_news) == 2:
                assert training_run.evaluation_client.pid is not None
                os.kill(training_run.evaluation_client.pid, SIGKILL)

    slow = moody("dawdle", 0, where="judge") | {"eval.period": 64, "eval.episodes": 2}
    with begin(tmp_path, TWO_ACTORS | slow) as training_run:
        answer = finish(training_run, look)

    evaluations = [event for event in story.events if isinstance(event, Evaluated)]
    assert 2 <= len(evaluations) < 3_000 // 64
    assert [e.version for e in evaluations] == sorted({e.version for e in evaluations})
    assert evaluations[-1].counters.env_steps == answer["env_steps"]
    assert paused_s < 0.5
    assert [e.kind for e in story.events if isinstance(e, Warned)] == ["evaluator"]


@pytest.mark.usefixtures("inline")
def test_one_that_is_stopped_before_its_first_report_is_named_and_then_replaced(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(local_group, "START_S", 2.0)
    story = Story(played((0, 1), (1, 0)))
    with begin(tmp_path, TWO_ACTORS | {"actor.env_step_timeout_s": 1.0}) as training_run:
        os.kill(training_run.parts.actors.pids["actor-0"], SIGSTOP)  # it waits for its first order
        answer = finish(training_run, story.look)

    starting, lost = story.complaints
    assert re.fullmatch(
        r"actor 0 is still starting: it has not answered for \d s, and is replaced after 3 s",
        starting,
    )
    assert lost.startswith("actor 0 was lost (has not moved for 3 s (actor.env_step_timeout_s is 1")
    assert answer["faults"]["hang"] == 1


def train(forker: CommandForker, cwd: Path, settings: dict[str, Any]) -> Any:
    changes = SMALL | {"report.log_period": 64} | settings
    argv = ["train", "corridor", "--json", "--quiet", "--run-dir", "run", *words(changes)]
    return forker.start(argv, cwd)


def kwargs(**values: Any) -> dict[str, Any]:
    inside = ", ".join(f"{key}: {value}" for key, value in values.items())
    return {"env.kwargs": "{" + inside + "}"}


def test_an_environment_that_always_raises_ends_the_run_with_its_own_traceback(forker, tmp_path):
    settings = {
        "env.id": "misbehaving_envs:Moody",
        "run.mode": "async",
        "actor.num": 2,
        "actor.max_restarts": 1,
    }
    run = train(forker, tmp_path, settings | kwargs(mood="raise", at=1, where="actors"))

    assert run.wait() == 3, run.said
    *_, last = run.stderr.read_text().splitlines()
    assert re.match(r"rookery: error: actor \d of misbehaving_envs:Moody \(seed 0, inc", last)
    assert "was lost 2 times in a row" in last
    assert "correct the environment, or raise actor.max_restarts (1)" in last
    assert 'raise RuntimeError("the motor is on fire")' in run.said  # a line of its traceback
    assert settled(run.pid)


def test_quiet_async_warns_on_stderr_and_counts_what_it_survived(forker, tmp_path):
    settings = {"env.id": "misbehaving_envs:Moody", "run.mode": "async", "actor.num": 2}
    run = train(forker, tmp_path, settings | kwargs(mood="nan", at=60, where="first actor once"))

    assert run.wait() == 0, run.said
    said = run.stderr.read_text()
    where = "EnvError: misbehaving_envs:Moody, environment 0, step 60: observation[0] is nan"
    assert f"rookery: warning (actor): actor 0 was lost ({where}" in said
    faults = {"env_error": 1, "error": 0, "hang": 0, "crash": 0}
    assert run.answer["faults"] == faults
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["faults"] == faults


@pytest.mark.parametrize("mood", ["nan", "raise", "leave", "tuple"])
def test_the_same_environment_error_of_async_actors_ends_the_run_at_the_third(
    mood, forker, tmp_path
):
    settings = {"env.id": "misbehaving_envs:Moody", "run.mode": "async", "actor.num": 1}
    run = train(forker, tmp_path, settings | kwargs(mood=mood, at=60, where="actors"))

    assert run.wait() == 3, run.said
    warned = [line for line in run.stderr.read_text().splitlines() if "warning (actor)" in line]
    assert len(warned) == 2
    *_, last = run.stderr.read_text().splitlines()
    assert last.startswith("rookery: error: misbehaving_envs:Moody, environment ")
    assert "3 actors of this run were lost with this error" in last


def test_where_actors_live_in_the_training_process_one_that_hangs_ends_the_run(forker, tmp_path):
    """In a sleep, in compiled code that never returns, and in the first of two inline actors."""
    runs = {}
    for name, stage, mode in (
        ("single", "play", {}),
        ("compiled", "compiled", {}),
        ("sync", "play", {"run.mode": "sync", "run.engine": "inline", "actor.num": 2}),
    ):
        (tmp_path / name).mkdir()
        reached = tmp_path / name / "reached"
        settings = {"env.id": "misbehaving_envs:Staged", "actor.env_step_timeout_s": 1.0} | mode
        staged = kwargs(reached=f"'{reached}'", at=stage)
        runs[name] = train(forker, tmp_path / name, settings | staged)

    for run in runs.values():
        assert run.wait() == 3, run.said
        *_, last = run.stderr.read_text().splitlines()
        assert re.match(r"rookery: error: misbehaving_envs:Staged has not answered for \d+ s", last)
        assert "(actor.env_step_timeout_s is 1)" in last
        assert re.search(r"misbehaving_envs.py, line \d+\)$", last)
        assert settled(run.pid)


def test_when_the_training_process_is_killed_no_actor_is_left_and_the_run_can_go_on(
    forker, tmp_path
):
    """One of them is stopped, and cannot notice anything by itself."""
    before, run_dir = shared(), tmp_path / "run"
    run = train(forker, tmp_path, {"run.mode": "async", "actor.num": 2, "run.env_steps": 10**7})
    assert eventually(lambda: bool(checkpoint.folders(run_dir / "checkpoints")), 60.0), run.said
    actors = [named(run.pid, f"rookery-actor-{i}") for i in range(2)]
    assert None not in actors
    os.kill(actors[0], SIGSTOP)

    run.send(SIGKILL)

    assert run.wait() == -SIGKILL
    assert settled(run.pid, within_s=2.0)
    assert nothing_new(before)
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    more = ["--env-steps", str(found.env_steps + 2_000)]
    again = forker.start(["train", "--resume", "run", "--json", "--quiet", *more], tmp_path)
    assert again.wait() == 0, again.said
    logged = record(run_dir, "logged")
    steps = [entry["env_steps"] for entry in logged]
    assert steps == sorted(set(steps))
    assert [e["learner_steps"] for e in logged] == sorted(e["learner_steps"] for e in logged)

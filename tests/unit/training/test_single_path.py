"""The path of a training step in single mode: the files that the walk page lists, and no other."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import rookery
from rookery.config.load import load
from rookery.evaluation.backend import RunRequest, RunSession
from rookery.event import Collected, Event, IterationEnded, Learned
from rookery.training.launch import session
from rookery.training.run import TrainingRun

SOURCE = Path(rookery.__file__).parent
WALK = Path(__file__).parents[3] / "docs" / "architecture" / "walk.md"
FILES, MOST_HELPERS = 14, 10
WARM_STEPS, ITERATIONS = 1_000, 20
RARE = 10_000_000  # env steps: no evaluation, checkpoint or log line, which are other steps


def walk_and_helpers() -> tuple[list[str], list[str]]:
    """Returns the files of the walk and its helpers, as the page lists them."""
    walk = listed("these 14 files:", "They call these helpers:")
    return walk, listed("They call these helpers:", "One iteration calls")


def listed(begin: str, end: str) -> list[str]:
    """Returns the files that the walk page names between two of its phrases."""
    page = WALK.read_text()
    assert page.count(begin) == page.count(end) == 1, (begin, end)
    return re.findall(r"`([a-z0-9_/]+\.py)`", page.partition(begin)[2].partition(end)[0])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunSession]:
    """A run of scenario cartpole in single mode, with the scenario's own network and batches."""
    periods = dict.fromkeys(("eval.period", "checkpoint.period", "report.log_period"), RARE)
    periods |= {"run.env_steps": RARE}
    changes = {**periods, "env.check": False, "run.run_dir": str(tmp_path / "run")}
    with session(load("cartpole", changes=changes), RunRequest()) as run:
        yield run


def test_the_page_lists_14_files_and_at_most_10_helpers():
    walk, helpers = walk_and_helpers()

    assert len(set(walk)) == len(walk) == FILES
    assert len(set(helpers)) == len(helpers) <= MOST_HELPERS
    assert not set(walk) & set(helpers)


def test_a_step_passes_the_files_of_the_walk_page_and_no_other(run):
    assert isinstance(run, TrainingRun)
    assert run.config.run.mode == "single"
    assert run.config.algo.name == "dqn"
    events = run.events()
    warm_up(run, events)
    version = run.parts.actors.actor.version

    passed: list[Event] = []
    files = profiled(lambda: passed.extend(some_iterations(events)))

    assert {type(event) for event in passed} == {Learned, IterationEnded, Collected}
    assert any(event.ended for event in passed if isinstance(event, Collected))
    assert run.parts.actors.actor.version > version  # weights were published and pulled
    walk, helpers = walk_and_helpers()
    assert files == {*walk, *helpers}


def warm_up(run: TrainingRun, events: Iterator[Event]) -> None:
    """Trains until functions are compiled and the evaluation process has written all events."""
    for event in events:
        warm = event.counters.learner_steps > 0 and event.counters.env_steps > WARM_STEPS
        if warm and isinstance(event, IterationEnded) and not run.evaluation_client.unconfirmed:
            return


def some_iterations(events: Iterator[Event]) -> Iterator[Event]:
    """Yields the events of some iterations, in which an episode has ended."""
    iterations = episodes = 0
    for event in events:
        yield event
        episodes += len(event.ended) if isinstance(event, Collected) else 0
        iterations += isinstance(event, IterationEnded)
        if iterations >= ITERATIONS and episodes:
            return


def profiled(work: Callable[[], None]) -> set[str]:
    """Returns the files of Rookery in which functions are called."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    paths = map(Path, found)
    return {str(path.relative_to(SOURCE)) for path in paths if path.is_relative_to(SOURCE)}

"""Supervision of a process: signs of life, losses in a row, and what they lead to."""

from types import SimpleNamespace
from typing import Any

import pytest

from rookery.errors import ConfigError, LostError
from rookery.runtime.supervision import Restarts, Supervision


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("rookery.runtime.supervision.time", clock)
    return clock


def failure(*, final: bool = False) -> Any:
    return SimpleNamespace(summary="EnvError: on fire", traceback="Traceback: on fire", final=final)


def watch(**options: Any) -> Supervision:
    return Supervision("worker 3", max_restarts=2, remedy="mend it", **options)


def test_the_pause_doubles_with_every_loss_in_a_row(clock):
    restarts = Restarts(5)

    assert [restarts.count() for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
    assert not restarts.due
    clock.now += 2.0
    assert restarts.due


def test_work_in_between_begins_the_count_anew(clock):
    restarts = Restarts(1)
    restarts.count()
    restarts.recovered()
    restarts.count()

    assert not restarts.too_many


def test_too_many_losses_in_a_row_end_the_run_with_the_remedy(clock):
    one = watch()
    one.lost("died")
    one.lost("died")

    with pytest.raises(LostError, match=r"worker 3 of X was lost 3 times in a row, .* mend it"):
        one.lost("died", details=" of X")


def test_a_warning_names_what_was_lost_and_when_it_is_replaced(clock):
    one = watch()

    assert (
        one.lost("died", status=-9) == "worker 3 was lost (died (exit status -9)) and is replaced"
    )
    assert one.lost("died") == "worker 3 was lost (died) and is replaced in 0.5 s"


def test_a_wrong_request_is_refused_only_before_any_answer(clock):
    fresh, proven = watch(), watch()
    proven.heard_from()
    for one in (fresh, proven):
        one.failed(failure(final=True))

    with pytest.raises(ConfigError, match="worker 3: on fire"):
        fresh.lost("EnvError: on fire")
    assert "is replaced" in proven.lost("EnvError: on fire")


def test_what_is_wrong_with_a_process(clock):
    one = watch()
    silent: dict[str, Any] = {"silence_s": 0.0, "limit_s": 1.0}

    assert one.trouble(alive=True, **silent) is None
    assert one.trouble(alive=False, **silent) == "died"
    one.failed(failure())
    assert one.trouble(alive=True, closing_s=2.0, **silent) is None  # it closes its environments
    assert one.trouble(alive=False, closing_s=2.0, **silent) == "EnvError: on fire"
    one.started()
    assert one.trouble(alive=True, **silent) is None

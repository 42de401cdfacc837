"""Supervision of a process: signs of life, losses in a row, and what they lead to."""

from types import SimpleNamespace
from typing import Any

import pytest

from rookery.errors import ConfigError, EnvError, LostError
from rookery.runtime.supervision import ActorLoss, LossKind, LossTally, Supervision


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("rookery.runtime.supervision.time", clock)
    return clock


def failure(*, final: bool = False, environment: bool = False) -> Any:
    return SimpleNamespace(
        summary="EnvError: on fire",
        traceback="Traceback: on fire",
        final=final,
        environment=environment,
    )


def watch(**options: Any) -> Supervision:
    return Supervision("worker 3", max_restarts=2, remedy="mend it", **options)


def test_the_pause_doubles_with_every_loss_in_a_row(clock):
    restarts = Supervision("a", max_restarts=5)

    assert [restarts.count_failure() for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
    assert not restarts.due
    clock.now += 2.0
    assert restarts.due


def test_work_in_between_begins_the_count_anew(clock):
    restarts = Supervision("a", max_restarts=1)
    restarts.count_failure()
    restarts.recovered()
    restarts.count_failure()

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


def test_the_kind_of_a_loss_is_known(clock):
    one = watch()
    silent: dict[str, Any] = {"silence_s": 9.0, "limit_s": 1.0}
    found = []
    for alive, raised in ((False, None), (False, failure()), (False, failure(environment=True))):
        one.started()
        if raised is not None:
            one.failed(raised)
        assert one.trouble(alive=alive, **silent) is not None
        found.append(one.loss)

    assert found == [LossKind.CRASH, LossKind.ERROR, LossKind.ENV_ERROR]


class Silence:
    """Patience that takes the time without a heartbeat as it is told."""

    silent_s = 0.0

    def at_end(self, silence_s: float, limit_s: float) -> bool:
        self.silent_s = silence_s
        return silence_s > limit_s


def test_a_process_that_never_answers_is_named_once_and_lost_after_its_time_to_start(monkeypatch):
    monkeypatch.setattr("rookery.runtime.supervision.Patience", Silence)
    one, troubles, notices = watch(start_s=5.0), [], []

    for silence_s in (1.0, 3.0, 4.0, 8.0):
        troubles.append(one.trouble(alive=True, silence_s=silence_s, limit_s=2.0))
        notices.append(one.slow_start(2.0))

    said = "worker 3 is still starting: it has not answered for 3 s, and is replaced after 7 s"
    assert notices == ["", said, "", ""]
    assert troubles[:3] == [None, None, None]
    assert troubles[3] == "has not moved for 8 s (actor.env_step_timeout_s is 2)"


def test_more_than_so_many_losses_in_an_hour_end_the_run_whatever_lies_between_them(clock):
    one = watch(per_hour=3)
    for _ in range(3):
        one.lost("died")
        one.recovered()
        clock.now += 1_000.0

    with pytest.raises(LostError, match=r"was lost 4 times within an hour, .* at most 3 are"):
        one.lost("died")


def test_losses_of_an_earlier_hour_do_not_count(clock):
    one = watch(per_hour=3)
    for _ in range(10):
        one.lost("died")
        one.recovered()
        clock.now += 1_201.0


def env_error(text: str) -> ActorLoss:
    return ActorLoss(LossKind.ENV_ERROR, f"EnvError: {text}", "Traceback: of the actor")


def test_the_same_environment_error_three_times_ends_the_run_whatever_its_numbers():
    tally = LossTally()
    tally.add(env_error("my:Env, environment 0, step 70: observation[1] is nan"))
    tally.add(env_error("my:Env, environment 3, step 68: observation[1] is nan"))

    with pytest.raises(EnvError, match=r"my:Env, environment 1, step 9: .*3 actors of this") as end:
        tally.add(env_error("my:Env, environment 1, step 9: observation[1] is nan"))

    assert end.value.__notes__ == ["Traceback: of the actor"]
    assert tally.counts == {LossKind.ENV_ERROR: 3}


def test_different_environment_errors_and_other_losses_do_not_end_the_run():
    tally = LossTally()
    for text in ("a is nan", "b is nan", "a is inf"):
        tally.add(env_error(text))
        tally.add(env_error(text))
        tally.add(ActorLoss(LossKind.HANG))
        tally.add(ActorLoss(LossKind.CRASH))

    assert tally.counts == {LossKind.ENV_ERROR: 6, LossKind.HANG: 3, LossKind.CRASH: 3}

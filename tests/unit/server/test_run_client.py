"""A client of a server: what it sends, when it sends it again, and when it is over."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rookery.config.load import load
from rookery.errors import ConfigError, RefusedError, StalledError
from rookery.event import Episode, Reason
from rookery.server.advertised_settings import Notice, Sharing, portable, settings_of
from rookery.server.gradient_worker import RunGradients, RunSetup, Update
from rookery.server.parameter_server import Parameters, Receipt
from rookery.server.run_client import Asked, Member, ProximalTerm, RoundLearner
from rookery.types import Array

SMALL = {
    "run.seed": 1,
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "replay.capacity": 500,
    "net.hidden": [8],
    "actor.envs": 2,
    "actor.chunk": 16,
}
CORRIDOR = portable(load("corridor", changes=SMALL))


class Remote:
    """A server that answers by a script."""

    def __init__(self, *receipts: Any, versions: Iterator[int] | None = None):
        self.receipts, self.versions = list(receipts), versions or iter(range(1000))
        self.pushed: list[tuple[float, int, str]] = []
        self.registered, self.left, self.gave_up = 0, 0, False
        self.taken_back: list[int] = []  # after how many pushes

    def register_worker(self, worker: str) -> int:
        self.registered += 1
        return 0

    def unregister_worker(self, worker: str) -> None:
        self.left += 1

    def get_parameters(self, newer_than: int = -1, *, wait_s: float = 0.0) -> Parameters | None:
        version = next(self.versions)
        return Parameters(version, {"version": np.array(version)}) if version > newer_than else None

    def push_gradients(self, worker, grads, weight, *, version, push_id) -> Receipt:
        self.pushed.append((weight, version, push_id))
        receipt = self.receipts.pop(0)
        if isinstance(receipt, Exception):
            raise receipt
        return receipt

    def take_back(self, worker: str) -> None:
        self.taken_back.append(len(self.pushed))

    def give_up(self) -> None:
        self.gave_up = True


class Steady:
    """Has an update with every step, of 10 env steps."""

    def __init__(self) -> None:
        self.env_steps, self.ended, self.loaded = 0, list[Episode](), list[tuple[int, int]]()

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        self.loaded.append((int(parameters["version"]), steps))

    def step(self) -> Update:
        self.env_steps += 10
        self.ended.append(Episode(1.0, 10))
        return Update({"w": np.zeros(1, np.float32)}, 10.0)

    def close(self) -> None: ...


def member(
    remote: Remote, *, waits: bool = False, private: bool = False, until=None, deadline_s=30.0, **o
) -> Member:
    asked = Asked(url="http://localhost", client="a", key="k" * 32, quiet=True, **o)
    notice = Notice(Sharing.FEDERATED, settings_of(CORRIDOR), 10, deadline_s, until)
    stats = {"synchronous": waits, "differential_privacy": private}
    interrupts: Any = SimpleNamespace(reason=None, exit_code=0)
    return Member(asked, remote, notice, stats, Steady(), interrupts)  # type: ignore[arg-type]


def ok(version: int = 1) -> Receipt:
    return Receipt(True, "ok", version)


def test_a_client_trains_from_what_it_pulled_and_ends_after_its_rounds():
    remote = Remote(ok(1), ok(2))
    one = member(remote, rounds=2)

    assert one.until_over() == "rounds"
    assert [(weight, version) for weight, version, _ in remote.pushed] == [(10.0, 0), (10.0, 1)]
    answer = one.answer("rounds")
    assert (answer["accepted"], answer["env_steps"], answer["episodes"]) == (2, 20, 2)
    assert answer["mean_return"] == 1.0


def test_it_ends_after_its_steps():
    assert member(Remote(*[ok()] * 9), steps=30).until_over() == "steps"


def test_it_ends_at_the_servers_last_version():
    remote = Remote(ok(1), ok(2), ok(3))

    one = member(remote, until=3)
    assert one.until_over() == "limit"
    assert one.learner.loaded == [(0, 0), (1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("code", ["over", "budget"])
def test_what_the_server_says_of_the_end_is_no_error(code):
    assert member(Remote(RefusedError("done", code))).until_over() == code


@pytest.mark.parametrize("code", ["auth", "schema", "quarantined"])
def test_other_refusals_are(code):
    with pytest.raises(RefusedError):
        member(Remote(RefusedError("no", code))).until_over()


def test_a_server_that_has_forgotten_the_client_is_told_and_gets_the_same_update():
    remote = Remote(RefusedError("who?", "unknown_worker"), ok())

    assert member(remote, steps=10).until_over() == "steps"
    assert remote.registered == 2
    assert remote.pushed[0] == remote.pushed[1]


@pytest.mark.parametrize("waits", [False, True])
def test_a_server_that_was_put_back_is_followed(waits):
    remote = Remote(Receipt(False, "stale", 3), ok(4), versions=iter([9, 3, 4]))

    one = member(remote, waits=waits, steps=20)
    assert one.until_over() == "steps"
    assert one.learner.loaded[:2] == [(9, 0), (3, 0)]
    assert [version for _, version, _ in remote.pushed] == [9, 3]


def test_in_rounds_it_waits_for_the_next_version_before_it_goes_on():
    remote = Remote(ok(0), ok(1), versions=iter([0, 0, 0, 1, 1, 2]))

    one = member(remote, waits=True, until=2)
    assert one.until_over() == "limit"
    assert [version for _, version, _ in remote.pushed] == [0, 1]


def test_a_round_that_came_to_nothing_is_tried_again_as_another_push():
    remote = Remote(ok(0), ok(1), versions=iter([0, 0, 1]))

    one = member(remote, waits=True, until=1, deadline_s=-9.0)
    assert one.until_over() == "limit"
    (first, second, *_) = remote.pushed
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert remote.taken_back == [1]


def test_under_privacy_every_update_weighs_one():
    remote = Remote(ok())
    member(remote, private=True, steps=10).until_over()

    assert remote.pushed[0][0] == 1.0


def test_a_signal_while_the_server_is_away_is_not_an_error():
    remote = Remote(StalledError("away"))
    one = member(remote)
    step = one.learner.step

    def interrupted() -> Update | None:
        one.interrupts.reason = Reason.INTERRUPTED
        return step()

    one.learner.step = interrupted  # type: ignore[method-assign]
    assert one.until_over() == "interrupted"
    one.leave()
    assert remote.left == 1
    assert remote.gave_up


def test_without_a_signal_it_is():
    with pytest.raises(StalledError):
        member(Remote(StalledError("away"))).until_over()


class TestLearners:
    def notice(self, steps: int = 100) -> Notice:
        return Notice(Sharing.FEDERATED, settings_of(CORRIDOR), steps, 30.0, None)

    def own(self, learner: RoundLearner) -> dict[str, Any]:
        return {name: p.detach().numpy().copy() for name, p in learner.trained.items()}

    def test_a_round_sends_what_it_has_changed_and_how_long_it_was(self):
        learner = RoundLearner(CORRIDOR, self.notice())
        start = {name: array + 0.01 for name, array in self.own(learner).items()}
        learner.load(start, 0)
        while (update := learner.step()) is None:
            pass

        assert update.weight == learner.env_steps >= 100
        now = self.own(learner)
        assert any(np.abs(change).max() > 0 for change in update.arrays.values())
        for name, change in update.arrays.items():
            np.testing.assert_allclose(start[name] + change, now[name], atol=1e-6)
        learner.close()

    def test_the_next_round_begins_from_what_the_server_has(self):
        learner = RoundLearner(CORRIDOR, self.notice())
        start = self.own(learner)
        learner.load(start, 0)
        while learner.step() is None:
            pass
        learner.load(start, 0)

        assert all(np.array_equal(start[n], a) for n, a in self.own(learner).items())
        assert learner.step() is None  # its steps are counted anew
        learner.close()

    def test_what_is_not_sent_is_worked_on(self):
        learner = RoundLearner(CORRIDOR, self.notice())
        learner.load(start := self.own(learner), 0)
        while learner.step() is None:
            pass
        learner.go_on()

        assert learner.step() is None
        while (update := learner.step()) is None:
            pass
        now = self.own(learner)
        for name, change in update.arrays.items():
            np.testing.assert_allclose(start[name] + change, now[name], atol=1e-6)
        learner.close()

    def test_fedprox_holds_a_client_near_what_it_was_served(self):
        def moved(mu: float) -> float:
            notice = Notice(Sharing.FEDERATED, settings_of(CORRIDOR), 100, 30.0, None, mu)
            learner = RoundLearner(CORRIDOR, notice)
            learner.load(self.own(learner), 0)
            while (update := learner.step()) is None:
                pass
            learner.close()
            return float(np.sqrt(sum((change**2).sum() for change in update.arrays.values())))

        assert 0 < moved(100.0) < moved(0.0) / 2

    def test_another_network_is_refused_with_the_names_that_differ(self):
        learner = RoundLearner(CORRIDOR, self.notice())
        wrong = {**self.own(learner), "more": np.zeros(1, np.float32)}

        with pytest.raises(ConfigError, match="more"):
            learner.load(wrong, 0)
        learner.close()

    def test_gradients_are_of_the_parameters_that_were_served(self):
        learner = RunGradients(RunSetup(CORRIDOR, None))
        served = learner.learner.parameters()
        learner.load(served, 0)
        while (update := learner.step()) is None:
            pass

        assert update.arrays.keys() == served.keys()
        after = learner.learner.parameters()
        assert all(np.array_equal(served[name], after[name]) for name in served)
        learner.close()


def test_every_step_is_pulled_toward_where_the_round_began():
    """w - lr (g + mu (w - w_0)), by hand."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    term = ProximalTerm(optimizer, mu=0.5)
    term.anchor()
    expected = np.array([1.0, 2.0])
    for gradient in ([1.0, -1.0], [0.0, 2.0]):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        expected -= 0.1 * (np.array(gradient) + 0.5 * (expected - [1.0, 2.0]))

    assert parameter.tolist() == pytest.approx(expected.tolist())

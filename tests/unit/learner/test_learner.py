"""The learner: weights change here and nowhere else, by finite steps, and go on where they were."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rookery.algorithms import build_algorithm
from rookery.algorithms.algorithm import Algorithm, Loss
from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.config.load import load
from rookery.config.schema import EnvConfig, LearnerConfig, NetConfig, Optimizer
from rookery.errors import ConfigError, LostError
from rookery.learner.learner import OPTIMIZERS, Learner
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import fingerprint
from rookery.schedule import Decay
from rookery.types import ActionSpec, Batch
from sample_experience import VECTOR
from scripted_roles import flat_spec

CPU = torch.device("cpu")
SPEC = flat_spec(width=3, actions=2)


def batch(seed: int = 0, size: int = 8, **changes: Any) -> Batch:
    """Returns a batch as the pool draws it: numpy arrays."""
    rng = np.random.default_rng(seed)
    made = Batch(
        obs=rng.normal(size=(size, 3)).astype(np.float32),
        action=rng.integers(0, 2, size),
        reward=rng.normal(size=size).astype(np.float32),
        discount=np.full(size, 0.9, np.float32),
        next_obs=rng.normal(size=(size, 3)).astype(np.float32),
        weight=np.ones(size, np.float32),
        rows=np.arange(size),
    )
    return made._replace(**changes)


def learner(env: EnvConfig | None = None, algo: DqnConfig | None = None, **config: Any) -> Learner:
    env = env or EnvConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        algorithm = Dqn(algo or DqnConfig(target_period=4), NetConfig(hidden=(8,)), env, SPEC)
    return Learner(algorithm, LearnerConfig(**config), env, CPU)


class Bowl(Algorithm):
    """An algorithm with one weight and a loss of the test's choice; it keeps what it was shown."""

    def __init__(self, loss: Callable[[Tensor, Batch], Tensor]):
        self.acting: nn.Module = nn.Linear(1, 1, bias=False)
        self.networks = nn.ModuleDict({"acting": self.acting})
        self.weight: nn.Parameter = self.acting.weight  # type: ignore[assignment]
        with torch.no_grad():
            self.weight.fill_(1.0)
        self.loss, self.settled = loss, 0
        self.shown: list[Batch] = []

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"bowl": [self.weight]}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        self.shown.append(batch)
        value = self.loss(self.weight.sum(), batch)
        yield Loss("bowl", value, torch.ones(3), {"depth": value.detach()})

    def update_targets(self, step: int) -> None:
        self.settled = step


def bowl(loss: Callable[[Tensor, Batch], Tensor], **config: Any) -> tuple[Learner, Bowl]:
    made = Bowl(loss)
    settings = {"lr": 0.1, "optimizer": Optimizer.SGD, "max_grad_norm": None} | config
    return Learner(made, LearnerConfig(**settings), EnvConfig(), CPU), made


class TwoBowls(Bowl):
    """An algorithm with two losses in each step; the second one depends on the reward."""

    def __init__(self) -> None:
        super().__init__(lambda w, _: w**2)
        self.other = nn.Parameter(torch.ones(1))
        self.networks["other"] = nn.ParameterList([self.other])

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return super().groups() | {"other": [self.other]}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        yield from super().losses(batch, step=step, rng=rng)
        yield Loss("other", (self.other * self.weight.detach() * batch.reward[0]).sum(), None, {})


def two_bowls(**config: Any) -> Learner:
    return Learner(TwoBowls(), LearnerConfig(**{"lr": 0.1} | config), EnvConfig(), CPU)


class TestSteps:
    def test_only_learn_changes_weights(self) -> None:
        made = learner(EnvConfig(normalize_reward=True), lr_decay=Decay.LINEAR)
        before = made.weights_sha256()

        made.advance(0.5)
        made.observe({"": batch().obs}, np.ones(8))
        numbers, arrays = made.state()
        made.restore(numbers, arrays)
        made.algorithm.update_targets(0)
        made.due()
        made.weights()
        made.algorithm.act(batch().obs, np.random.default_rng(0), epsilon=0.5)
        list(made.algorithm.losses(made._to_device(batch()), step=1, rng=made.rng))
        assert made.weights_sha256() == before

        made.learn(batch())
        assert made.weights_sha256() != before

    def test_a_step_descends_by_rate_times_gradient(self) -> None:
        made, one = bowl(lambda w, _: 3.0 * w, lr=0.125)
        made.learn(batch())

        assert one.weight.item() == 1.0 - 0.125 * 3.0

    def test_steps_are_counted_and_told_to_the_algorithm(self) -> None:
        made, one = bowl(lambda w, _: w**2, publish_period=3)
        due = []
        for _ in range(6):
            made.learn(batch())
            due.append(made.due())

        assert (made.learner_steps, one.settled) == (6, 6)
        assert due == [False, False, True] * 2

    def test_facts_are_on_the_host_and_detached(self) -> None:
        facts = learner().learn(batch())

        assert isinstance(facts.td_error, np.ndarray)
        assert facts.td_error.shape == (8,)
        assert set(facts.metrics) == {"loss", "q_mean"}
        assert not any(value.requires_grad for value in facts.metrics.values())

    def test_weights_are_the_newest_after_every_step(self) -> None:
        made = learner()
        for seed in range(3):
            made.learn(batch(seed))
            own = {k: v.numpy() for k, v in made.algorithm.acting.state_dict().items()}

            assert fingerprint(made.weights()) == fingerprint(own)

    def test_acting_with_weights_that_are_trained_changes_nothing_about_training(self) -> None:
        acting, resting = learner(), learner()
        for seed in range(10):
            acting.algorithm.act(batch(seed).obs, np.random.default_rng(0), epsilon=0.0)
            for made in (acting, resting):
                made.learn(batch(seed))

        assert acting.weights_sha256() == resting.weights_sha256()

    def test_learning_fits_what_it_is_shown(self) -> None:
        made, same = learner(lr=0.01), batch(discount=np.zeros(8, np.float32))
        first = float(made.learn(same).metrics["loss"])
        for _ in range(100):
            last = float(made.learn(same).metrics["loss"])

        assert last < first / 10


class TestClipping:
    @pytest.mark.parametrize(("limit", "moved"), [(None, 4.0), (2.0, 2.0), (100.0, 4.0)])
    def test_gradients_are_cut_to_their_greatest_norm(
        self, limit: float | None, moved: float
    ) -> None:
        made, one = bowl(lambda w, _: 4.0 * w, lr=1.0, max_grad_norm=limit)
        made.learn(batch())

        assert 1.0 - one.weight.item() == pytest.approx(moved, rel=1e-5)

    def test_the_norm_is_of_all_weights_together(self) -> None:
        made = learner(max_grad_norm=1e-3)
        made.learn(batch(reward=np.full(8, 100.0, np.float32)))

        grads = [p.grad for p in made.algorithm.groups()["q"]]
        total = torch.cat([g.flatten() for g in grads if g is not None]).norm()
        assert total.item() == pytest.approx(1e-3, rel=1e-3)


class TestRates:
    def test_the_rate_follows_its_schedule(self) -> None:
        made, one = bowl(lambda w, _: w, lr=0.5, lr_end=0.0, lr_decay=Decay.LINEAR)
        moved = []
        for share in (0.0, 0.5, 1.0, 2.0):
            made.advance(share)
            before = one.weight.item()
            made.learn(batch())
            moved.append(before - one.weight.item())

        assert moved == pytest.approx([0.5, 0.25, 0.0, 0.0], abs=1e-6)

    def test_a_constant_rate_stays(self) -> None:
        made, one = bowl(lambda w, _: w, lr=0.5, lr_end=0.0)
        made.advance(1.0)
        made.learn(batch())

        assert one.weight.item() == 0.5

    @pytest.mark.parametrize(("given", "rates"), [(None, (0.5, 0.5)), (0.25, (0.5, 0.25))])
    def test_critics_may_have_a_rate_of_their_own(self, given: float | None, rates: object) -> None:
        config = LearnerConfig(lr=0.5, critic_lr=given, lr_decay=Decay.LINEAR)
        made = Learner(build_sac(), config, EnvConfig(), CPU)

        made.advance(0.0)
        assert tuple(made.optimizers[n].param_groups[0]["lr"] for n in ("actor", "critic")) == rates
        made.advance(1.0)
        assert {made.optimizers[n].param_groups[0]["lr"] for n in ("actor", "critic")} == {0.0}

    def test_rate_0_changes_nothing(self) -> None:
        made = learner(lr=0.0)
        before = made.weights_sha256()
        for seed in range(5):
            made.learn(batch(seed))

        assert made.weights_sha256() == before


def build_sac() -> Algorithm:
    spec = replace(VECTOR, action=ActionSpec(shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2))
    return build_algorithm(load(None, overrides=["algo=sac", "net.hidden=[8]"]), spec)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("limit", [None, 10.0])
class TestBadSteps:
    @pytest.mark.parametrize(
        "bad",
        [
            lambda w, b: w * NAN,
            lambda w, b: w * INF,
            lambda w, b: w * 0.0 + INF,  # a finite gradient under an infinite loss
            lambda w, b: torch.sqrt(w * 0.0),  # an infinite gradient under a finite loss
        ],
        ids=["nan", "infinite", "only the loss", "only the gradient"],
    )
    def test_a_step_that_is_not_finite_is_skipped_and_changes_nothing(
        self, limit: float | None, bad: Callable[[Tensor, Batch], Tensor]
    ) -> None:
        made, one = bowl(
            lambda w, b: bad(w, b) if b.reward[0] > 0 else w**2,
            optimizer=Optimizer.ADAM,
            max_grad_norm=limit,
        )
        made.learn(batch(reward=np.array([-1.0], np.float32)))
        before = made.state()
        facts = made.learn(batch(reward=np.array([1.0], np.float32)))
        after = made.state()

        assert (facts.td_error, facts.metrics) == (None, {})
        assert fingerprint(after[1]) == fingerprint(before[1])  # optimizer and networks
        assert (made.learner_steps, made.skipped, one.settled) == (1, 1, 1)

    @pytest.mark.parametrize("optimizer", list(Optimizer))
    @pytest.mark.parametrize("good", [0, 2], ids=["at first", "later"])
    def test_a_step_whose_second_loss_is_not_finite_changes_nothing_at_all(
        self, limit: float | None, optimizer: Optimizer, good: int
    ) -> None:
        made = two_bowls(optimizer=optimizer, max_grad_norm=limit)
        for _ in range(good):
            made.learn(batch(reward=np.array([1.0], np.float32)))
        before = made.state()
        facts = made.learn(batch(reward=np.array([NAN], np.float32)))
        after = made.state()

        assert (facts.td_error, facts.metrics) == (None, {})
        assert fingerprint(after[1]) == fingerprint(before[1])  # optimizers and networks
        assert (made.learner_steps, made.skipped) == (good, 1)
        twin = two_bowls(optimizer=optimizer, max_grad_norm=limit)
        for _ in range(good + 1):
            twin.learn(batch(reward=np.array([1.0], np.float32)))
        made.learn(batch(reward=np.array([1.0], np.float32)))
        assert fingerprint(made.state()[1]) == fingerprint(twin.state()[1])

    def test_a_reward_of_nan_is_such_a_step(self, limit: float | None) -> None:
        made = learner(max_grad_norm=limit)
        before = made.weights_sha256()
        facts = made.learn(batch(reward=np.full(8, NAN, np.float32)))

        assert facts.td_error is None
        assert made.weights_sha256() == before

    def test_too_many_in_a_row_are_the_end(self, limit: float | None) -> None:
        made, _ = bowl(lambda w, b: w * b.reward[0], max_bad_steps=3, max_grad_norm=limit)
        bad, good = (batch(reward=np.array([r], np.float32)) for r in (NAN, 0.5))
        for one in (good, bad, bad, good, bad, bad):
            made.learn(one)

        with pytest.raises(LostError) as caught:
            made.learn(bad)

        assert "3 learner steps in a row" in str(caught.value)
        assert "(after 2 good ones); lower learner.lr (0.1)" in str(caught.value)
        assert made.skipped == 5


def test_running_out_of_memory_is_a_loss_with_what_to_do() -> None:
    def exhaust(weight: Tensor, batch: Batch) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 3.00 GiB")

    made, _ = bowl(exhaust)
    with pytest.raises(
        LostError, match=r"ran out of memory .*; lower replay\.batch_size"
    ) as caught:
        made.learn(batch())

    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


class TestNormalisedRewards:
    def test_rewards_are_divided_by_the_running_deviation_of_returns(self) -> None:
        shown = Bowl(lambda w, _: w)
        env = EnvConfig(normalize_reward=True)
        made = Learner(shown, LearnerConfig(), env, CPU)
        returns = np.random.default_rng(1).normal(5.0, 4.0, size=300)
        made.observe({}, returns[:100])
        made.observe({}, returns[100:])
        made.learn(batch(reward=np.array([1.0, -2.0], np.float32)))

        wanted = np.array([1.0, -2.0]) / returns.std()
        np.testing.assert_allclose(shown.shown[0].reward.numpy(), wanted, rtol=1e-4)

    @pytest.mark.parametrize(("limit", "wanted"), [(10.0, 10.0), (None, 100.0), (2.0, 2.0)])
    def test_normalised_rewards_are_clipped(self, limit: float | None, wanted: float) -> None:
        env = EnvConfig(normalize_reward=True, normalized_reward_clip=limit)
        shown = Bowl(lambda w, _: w)
        made = Learner(shown, LearnerConfig(), env, CPU)
        made.observe({}, np.array([-1.0, 1.0]))
        given = np.array([100.0, -100.0], np.float32)

        made.learn(batch(reward=given))

        expected = pytest.approx([wanted, -wanted], rel=1e-4)
        assert shown.shown[0].reward.tolist() == expected
        assert made.normalized(given).tolist() == expected

    def test_without_it_rewards_are_as_they_are(self) -> None:
        made, one = bowl(lambda w, _: w)
        made.observe({}, np.array([10.0, -10.0]))
        made.learn(batch(reward=np.array([1.0, -2.0], np.float32)))

        assert one.shown[0].reward.tolist() == [1.0, -2.0]

    def test_the_deviation_is_saved_and_actors_never_see_it(self) -> None:
        one, other = (learner(EnvConfig(normalize_reward=True)) for _ in range(2))
        one.observe({}, np.array([1.0, 5.0, 9.0]))
        other.restore(*one.state())

        assert other.scale.variance.item() == pytest.approx(np.var([1.0, 5.0, 9.0]))
        assert other.scale.count.item() == 3.0
        assert not any("scale" in name for name in one.weights())

    def test_no_new_rows_teach_nothing(self) -> None:
        made = learner(EnvConfig(normalize_reward=True, normalize_obs=True))
        made.observe({"": np.zeros((0, 3), np.float32)}, np.zeros(0))

        assert made.scale.count.item() == 0.0
        assert all(np.isfinite(array).all() for array in made.weights().values())


OPTIONS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "adam": (Optimizer.ADAM, {}),
    "adam, amsgrad": (Optimizer.ADAM, {"amsgrad": True}),
    "adamw": (Optimizer.ADAMW, {"weight_decay": 0.1}),
    "rmsprop": (Optimizer.RMSPROP, {}),
    "rmsprop, centered": (Optimizer.RMSPROP, {"centered": True, "momentum": 0.5}),
    "sgd": (Optimizer.SGD, {}),
    "sgd, momentum": (Optimizer.SGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize(("optimizer", "kwargs"), OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("before", [0, 6])
def test_a_restored_learner_goes_on_bit_for_bit(
    optimizer: Optimizer, kwargs: dict[str, Any], before: int
) -> None:
    env = EnvConfig(normalize_obs=True, normalize_reward=True)
    settings = {"optimizer": optimizer, "optimizer_kwargs": kwargs, "lr": 0.01}
    one, other = (learner(env, **settings) for _ in range(2))
    one.observe({"": batch(9).obs}, batch(9).reward.astype(np.float64))
    for seed in range(before):
        one.learn(batch(seed))
    other.learn(batch(77))  # what it was before is forgotten

    other.restore(*one.state())
    assert other.learner_steps == before
    for seed in range(20, 30):  # past the next copies into the target
        errors = [made.learn(batch(seed)).td_error for made in (one, other)]
        np.testing.assert_array_equal(*errors)

    assert fingerprint(one.state()[1]) == fingerprint(other.state()[1])


def test_a_saved_state_is_a_copy() -> None:
    made = learner()
    made.learn(batch())
    _, arrays = made.state()
    before = fingerprint(arrays)
    made.learn(batch(1))

    assert fingerprint(arrays) == before


class TestSettings:
    def test_every_optimizer_has_a_constructor(self) -> None:
        assert OPTIMIZERS.keys() == set(Optimizer)

    def test_settings_the_optimizer_does_not_know_are_refused(self) -> None:
        with pytest.raises(
            ConfigError, match=r"optimizer_kwargs \{'momentums': 1\} do not fit sgd"
        ):
            learner(optimizer=Optimizer.SGD, optimizer_kwargs={"momentums": 1})

    def test_settings_reach_the_optimizer(self) -> None:
        made = learner(optimizer_kwargs={"eps": 0.5, "betas": (0.1, 0.2)})

        assert made.optimizers["q"].param_groups[0]["eps"] == 0.5
        assert made.optimizers["q"].param_groups[0]["betas"] == (0.1, 0.2)


class TestDevices:
    @pytest.fixture
    def gpus(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        def pretend(count: int) -> None:
            monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
            monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)

        return pretend

    @pytest.mark.parametrize(
        ("count", "wanted", "device"),
        [
            (0, "auto", "cpu"),
            (0, "cpu", "cpu"),
            (2, "auto", "cuda:0"),
            (2, "cpu", "cpu"),
            (2, "cuda:1", "cuda:1"),
            (1, "cuda", "cuda"),
        ],
    )
    def test_the_device_is_the_one_asked_for(
        self, gpus: Callable[[int], None], count: int, wanted: str, device: str
    ) -> None:
        gpus(count)

        assert pick_device(wanted) == torch.device(device)

    @pytest.mark.parametrize(("count", "wanted"), [(0, "cuda"), (0, "cuda:0"), (1, "cuda:1")])
    def test_one_that_is_not_there_is_refused(
        self, gpus: Callable[[int], None], count: int, wanted: str
    ) -> None:
        gpus(count)

        with pytest.raises(ConfigError, match=f"{wanted}.* has {count} CUDA devices; use auto"):
            pick_device(wanted)

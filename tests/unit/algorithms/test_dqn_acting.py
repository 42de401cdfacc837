"""DQN's parts in acting: noise, distributions, networks of the user's own; what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig, Values
from rookery.config.load import load
from rookery.config.schema import Config, EnvConfig, LearnerConfig, NetConfig
from rookery.errors import ConfigError
from rookery.learner.learner import Learner
from rookery.networks.noisy import NoisyLinear
from rookery.types import Batch, EnvSpec
from scripted_roles import flat_spec

SPEC = flat_spec(width=3, actions=4)
OBS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
ROWS = 8


def dqn(net: NetConfig | None = None, **config: Any) -> Dqn:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Dqn(DqnConfig(**config), net or NetConfig(hidden=(8,)), EnvConfig(), SPEC)


def batch() -> Batch:
    obs = torch.from_numpy(OBS[: 2 * ROWS]).split(ROWS)
    ones = torch.ones(ROWS)
    action = torch.arange(ROWS) % 4
    return Batch(obs[0], action, ones, 0.9 * ones, obs[1], ones, np.arange(ROWS))


def actions(algorithm: Dqn, seed: int = 0, **how: Any) -> list[int]:
    return algorithm.act(OBS, np.random.default_rng(seed), **how).action.tolist()


class TestNoise:
    def test_other_noise_is_other_behaviour(self) -> None:
        algorithm = dqn(noisy=True, noise=2.0)

        assert len({tuple(actions(algorithm, seed)) for seed in range(5)}) == 5

    def test_it_is_drawn_anew_at_every_call_from_the_actors_generator_alone(self) -> None:
        algorithm, before = dqn(noisy=True, noise=2.0), torch.random.get_rng_state()

        def calls() -> list[list[int]]:
            rng = np.random.default_rng(3)
            return [algorithm.act(OBS, rng).action.tolist() for _ in range(3)]

        first, second = calls(), calls()

        assert first == second
        assert first[0] != first[1] != first[2]
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_without_it_the_mean_weights_decide(self) -> None:
        algorithm = dqn(noisy=True, noise=2.0)
        actions(algorithm)  # leaves the layers noisy

        greedy = actions(algorithm, noise=False)

        weights = {k: v for k, v in algorithm.acting.state_dict().items() if "sigma" not in k}
        plain = dqn()
        plain.acting.load_state_dict(weights)
        assert greedy == actions(plain)

    def test_a_loss_draws_for_learning_choosing_and_valuing_each(self) -> None:
        algorithm, heard = dqn(noisy=True, double=True), list[Tensor]()
        for name in ("online", "target"):
            layer: Any = algorithm.networks[name].body.out  # type: ignore[union-attr]
            layer.register_forward_hook(lambda of, *_: heard.append(of.noise_out))

        (loss,) = algorithm.losses(batch(), step=1, rng=torch.Generator())
        loss.value.backward()  # type: ignore[no-untyped-call]

        assert len({tuple(noise.tolist()) for noise in heard}) == len(heard) == 3
        assert all(bool(noise.any()) for noise in heard)
        grads = [p.grad for name, p in algorithm.online.named_parameters() if "sigma" in name]
        assert len(grads) == 4
        assert all(grad is not None and bool(grad.any()) for grad in grads)

    def test_a_loss_repeats_with_its_generator(self) -> None:
        algorithm = dqn(noisy=True, values=Values.IMPLICIT)

        def value(seed: int) -> float:
            rng = torch.Generator().manual_seed(seed)
            (loss,) = algorithm.losses(batch(), step=1, rng=rng)
            return loss.value.item()

        assert value(0) == value(0) != value(1)

    def test_random_actions_go_on_top(self) -> None:
        chosen = actions(dqn(noisy=True), epsilon=1.0)

        assert set(chosen) == {0, 1, 2, 3}

    @pytest.mark.parametrize("values", Values)
    def test_every_layer_after_the_features_is_noisy(self, values: Values) -> None:
        layers = [m for m in dqn(noisy=True, values=values).online.modules() if is_linear(m)]

        plain = [layer for layer in layers if isinstance(layer, nn.Linear)]
        assert len(plain) == (values is Values.IMPLICIT)  # the embedding of shares

    def test_noise_takes_the_place_of_random_actions_after_warmup(self) -> None:
        config = load("corridor", changes={"algo.noisy": True, "replay.learning_starts": 150})

        assert config.randomness[:3] == (1.0, 0.0, 150)


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | NoisyLinear)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("values", [Values.CATEGORICAL, Values.QUANTILES, Values.IMPLICIT])
class TestDistributions:
    def test_actions_and_their_values_are_those_of_the_means(
        self, values: Values, dueling: bool
    ) -> None:
        algorithm = dqn(values=values, dueling=dueling)

        acted = algorithm.act(OBS, np.random.default_rng(0), values=True)

        with torch.no_grad():
            said = algorithm.acting(torch.from_numpy(OBS))  # [50, 4, K]
        if values is Values.CATEGORICAL:
            mean = (said.softmax(-1) * torch.linspace(-10.0, 10.0, 51)).sum(-1).numpy()
        else:
            mean = said.mean(-1).numpy()
        assert said.shape == (50, 4, 51 if values is Values.CATEGORICAL else 32)
        assert acted.action.tolist() == mean.argmax(1).tolist() == actions(algorithm)
        assert acted.taken is not None
        np.testing.assert_allclose(acted.taken, mean.max(1), atol=1e-4)
        np.testing.assert_array_equal(acted.taken, acted.best)
        assert acted.taken.dtype == np.float32

    def test_they_are_saved_and_restored(self, values: Values, dueling: bool) -> None:
        one, other = (
            Learner(
                dqn(values=values, dueling=dueling, noisy=True),
                LearnerConfig(),
                EnvConfig(),
                torch.device("cpu"),
            )
            for _ in range(2)
        )
        numpy = batch()._replace(
            **{
                name: getattr(batch(), name).numpy()
                for name in ("obs", "action", "reward", "discount", "next_obs", "weight")
            }
        )
        one.learn(numpy)
        other.restore(*one.state())

        one.learn(numpy)
        other.learn(numpy)

        assert one.weights_sha256() == other.weights_sha256()


class Own(nn.Module):
    """A user's network, whose last operation must not be overwritten in place."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.layer = nn.Linear(spec.obs[0].shape[0], outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.layer(obs))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("values", Values)
def test_a_network_of_ones_own_goes_with_all_values(values: Values, dueling: bool) -> None:
    net = NetConfig(custom="test_dqn_acting:Own", hidden=(16,))
    algorithm = dqn(net, values=values, dueling=dueling)

    (loss,) = algorithm.losses(batch(), step=1, rng=torch.Generator())
    loss.value.backward()  # type: ignore[no-untyped-call]

    assert all(p.grad is not None for p in algorithm.online.parameters())
    assert len(actions(algorithm)) == 50


def test_a_quantile_is_asked_for_at_any_share() -> None:
    algorithm = dqn(values=Values.IMPLICIT, quantiles=8)
    obs, even = torch.from_numpy(OBS), (torch.arange(8) + 0.5) / 8
    with torch.no_grad():
        unasked = algorithm.online(obs)
        asked = algorithm.online(obs, even.expand(50, 8))
        three = algorithm.online(obs, torch.rand(50, 3, generator=torch.Generator()))

    torch.testing.assert_close(unasked, asked)
    assert three.shape == (50, 4, 3)


class TestRefused:
    @pytest.mark.parametrize("values", [Values.CATEGORICAL, Values.QUANTILES])
    def test_munchausen_with_values_it_does_not_go_with(self, values: Values) -> None:
        with pytest.raises(ConfigError, match=f"mean or implicit only, got {values}; choose"):
            Config(algo=DqnConfig(munchausen=True, values=values))

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"atoms": 1}, "algo.atoms must be at least 2"),
            ({"value_min": 3.0, "value_max": 3.0}, "algo.value_min must be below algo.value_max"),
            ({"quantiles": 0}, "algo.quantiles must be above 0"),
            ({"noise": -0.1}, "algo.noise must be at least 0"),
            ({"temperature": 0.0}, "algo.temperature must be above 0"),
            ({"munchausen_scale": 1.5}, "algo.munchausen_scale must be between 0"),
            ({"munchausen_clip": 0.5}, "algo.munchausen_clip must be at most 0"),
        ],
    )
    def test_numbers_outside(self, wrong: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            DqnConfig(**wrong)

    def test_actors_that_rank_rows_which_are_ranked_by_divergences(self) -> None:
        changes = {"replay.sampling": "prioritized", "replay.initial_priority": "actor"}
        load("corridor", changes=changes | {"algo.values": "quantiles"})

        with pytest.raises(
            ConfigError,
            match=r"largest only, got actor; its priorities are",
        ):
            load("corridor", changes=changes | {"algo.values": "categorical"})

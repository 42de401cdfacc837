"""Masks in algorithms and networks: nothing forbidden is done, drawn, counted on or seen."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from masked_envs import WIDTH, fenced, observations, random_masks, with_masks
from rookery.algorithms import build_algorithm
from rookery.algorithms.actor_critic import LOG_PROB
from rookery.algorithms.algorithm import Algorithm
from rookery.algorithms.exploration import (
    ActorSlice,
    BatchedGenerators,
    explore_discrete,
    greedy_or_random,
    sample_categorical,
)
from rookery.algorithms.masking import FORBIDDEN, allowed, masked
from rookery.algorithms.r2d2 import FRESH, MEMORY
from rookery.config.load import load
from rookery.config.schema import NetConfig
from rookery.envs.spaces import spec_of
from rookery.networks.encoders import Features, is_plain, normalizers, observe
from rookery.networks.forward import CompiledMlp, FastForward, tensors
from rookery.networks.mlp import build
from rookery.types import ADVANTAGE, MASK, RETURN, Array, Batch, EnvSpec, Leaf, LeafKind

ACTIONS, ROWS, T = 6, 60, 5
SPEC = spec_of("fenced", fenced(ACTIONS), spaces.Discrete(ACTIONS))
(SEEN,) = (leaf for leaf in SPEC.obs if leaf.name != MASK)
PLAIN = replace(SPEC, obs=(replace(SEEN, name=""),))
CPU = torch.device("cpu")

KINDS: dict[str, dict[str, Any]] = {
    "dqn": {},
    "dqn not double": {"algo.double": False},
    "dqn dueling": {"algo.dueling": True},
    "dqn noisy": {"algo.noisy": True},
    "dqn categorical": {"algo.values": "categorical", "algo.atoms": 7},
    "dqn quantiles": {"algo.values": "quantiles", "algo.quantiles": 5},
    "dqn implicit": {"algo.values": "implicit", "algo.quantiles": 5},
    "dqn implicit not double": {
        "algo.values": "implicit",
        "algo.quantiles": 5,
        "algo.double": False,
    },
    "dqn munchausen": {"algo.munchausen": True},
    "dqn munchausen implicit": {
        "algo.munchausen": True,
        "algo.values": "implicit",
        "algo.quantiles": 5,
    },
    "r2d2": {"algo.burn_in": 0, "algo.length": T, "algo.overlap": 0},
    "r2d2 not double": {
        "algo.burn_in": 2,
        "algo.length": 3,
        "algo.overlap": 0,
        "algo.double": False,
    },
    "ppo": {},
    "ppo shared": {"algo.shared_net": True},
    "a2c": {},
    "impala": {"algo.length": T},
    "sac": {},
}
SOFT = ("ppo", "a2c", "impala", "sac")  # whose policies draw


def made(kind: str, spec: EnvSpec = SPEC, **changes: Any) -> Any:
    """Returns an algorithm that is decided, and whose target differs from what is trained."""
    name = kind.split()[0]
    base = {"algo.name": name, "net.hidden": [8], "net.memory": 4, "learner.device": "cpu"}
    algorithm = build_algorithm(load(changes=base | KINDS[kind] | changes), spec)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in algorithm.networks.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=noise)
    return algorithm


def memory_of(algorithm: Algorithm, rows: int = ROWS) -> Any:
    rng = np.random.default_rng(5)
    if not algorithm.memory:
        return None
    return rng.normal(size=(rows, algorithm.memory)).astype(np.float32)


def act(algorithm: Algorithm, obs: Any, seed: int = 0, **how: Any) -> Any:
    rows = len(next(iter(algorithm.spec.unpack(obs).values())))
    rng = np.random.default_rng(seed)
    return algorithm.act(obs, rng, memory=memory_of(algorithm, rows), **how)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestScores:
    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_what_is_not_allowed_is_never_the_largest(self, as_tensor: bool) -> None:
        scores: Any = np.array([[1.0, 5.0, 3.0]], dtype=np.float32)
        mask: Any = np.array([[True, False, True]])
        if as_tensor:
            scores, mask = torch.from_numpy(scores), torch.from_numpy(mask)

        found = masked(scores, mask)

        assert found.dtype == scores.dtype
        assert found.tolist() == [[1.0, pytest.approx(FORBIDDEN), 3.0]]

    @pytest.mark.parametrize("value", [np.nan, -np.inf, -3e38, np.inf])
    def test_not_even_where_a_network_has_diverged(self, value: float) -> None:
        scores = np.full((1, 3), value, dtype=np.float32)
        mask = np.array([[False, True, False]])

        assert masked(scores, mask).argmax(1).tolist() == [1]
        assert masked(torch.from_numpy(scores), torch.from_numpy(mask)).argmax(1).tolist() == [1]
        rng = np.random.default_rng(0)
        assert sample_categorical(masked(scores, mask), rng).tolist() == [1]

    def test_probabilities_and_entropies_are_numbers(self) -> None:
        logits = torch.randn(4, 3, requires_grad=True)
        mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)

        log_prob = torch.log_softmax(masked(logits, mask) / 1e-3, 1)
        entropy = -(log_prob.exp() * log_prob).sum(1)
        entropy.sum().backward()  # type: ignore[no-untyped-call]

        assert entropy.isfinite().all()
        assert entropy[0] == 0
        assert logits.grad is not None
        assert logits.grad.isfinite().all()
        assert not logits.grad[~mask].any()

    def test_a_mask_that_allows_nothing_restricts_nothing(self) -> None:
        mask = np.array([[0] * ACTIONS, [1] + [0] * (ACTIONS - 1)], dtype=np.int8)

        found = allowed({MASK: mask}, SPEC)

        assert found.tolist() == [[True] * ACTIONS, [True] + [False] * (ACTIONS - 1)]
        assert torch.equal(allowed({MASK: torch.from_numpy(mask)}, SPEC), torch.from_numpy(found))

    def test_of_a_stack_of_frames_the_latest_counts(self) -> None:
        spec = replace(SPEC, frame_stack=2)
        old, new = random_masks(2 * ROWS, ACTIONS, np.random.default_rng(0)).reshape(2, ROWS, -1)

        assert np.array_equal(allowed({MASK: np.concatenate([old, new], 1)}, spec), new > 0)

    def test_without_a_mask_there_is_none(self) -> None:
        scores = np.zeros((2, 3), dtype=np.float32)

        assert allowed(scores, PLAIN) is None
        assert masked(scores, None) is scores


class TestChance:
    def test_random_actions_are_uniform_among_those_allowed(self) -> None:
        """30,000 draws; six standard deviations: a false alarm in 10^8."""
        mask = np.array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=bool)
        many = 30_000
        rng = np.random.default_rng(0)

        for row in mask:
            wide = np.broadcast_to(row, (many, ACTIONS))
            found = explore_discrete(np.zeros(many, dtype=np.int64), ACTIONS, 1.0, rng, wide)

            share = np.bincount(found, minlength=ACTIONS) / many
            wanted = row / row.sum()
            assert (np.abs(share - wanted) <= 6 * np.sqrt(wanted * (1 - wanted) / many)).all()
            assert not share[~row].any()

    def test_a_share_of_them_is_random(self) -> None:
        mask = np.ones((10_000, ACTIONS), dtype=bool)
        mask[:, 3] = False
        greedy = np.full(len(mask), 5)

        found = explore_discrete(greedy.copy(), ACTIONS, 0.5, np.random.default_rng(0), mask)

        assert 0.6 - 0.03 < np.mean(found == 5) < 0.6 + 0.03  # half, and a fifth of the other half

    def test_every_voice_draws_with_its_own_generator(self) -> None:
        mask = random_masks(30, ACTIONS, np.random.default_rng(1)) > 0
        parts = [slice(0, 7), slice(7, 30)]
        epsilons, first = (0.4, 1.0), mask.argmax(1)
        rngs = [np.random.default_rng(seed) for seed in (3, 4)]
        slices = [ActorSlice(*one) for one in zip(parts, rngs, epsilons, strict=True)]

        generators: Any = BatchedGenerators(slices)
        together = explore_discrete(first.copy(), ACTIONS, 0.0, generators, mask)

        for seed, rows, epsilon in zip((3, 4), parts, epsilons, strict=True):
            own = np.random.default_rng(seed)
            alone = explore_discrete(first[rows].copy(), ACTIONS, epsilon, own, mask[rows])
            assert np.array_equal(together[rows], alone)

    def test_the_least_of_chances_does_not_free_what_is_forbidden(self) -> None:
        class Zeros:
            def random(self, shape: Any) -> Array:
                return np.zeros(shape)

        logits = masked(np.zeros((1, 3), dtype=np.float32), np.array([[False, False, True]]))

        assert sample_categorical(logits, Zeros()).tolist() == [2]  # type: ignore[arg-type]


class TestActing:
    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("noise", [False, True])
    def test_only_what_is_allowed_is_done(self, kind: str, noise: bool, epsilon: float) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)

        acted = act(algorithm, obs, noise=noise, epsilon=epsilon, values=True)

        assert obs[MASK][np.arange(ROWS), acted.action].all()
        assert acted.action.dtype == np.int64
        assert np.isfinite(acted.taken).all()
        assert np.isfinite(acted.best).all()

    def test_a_mask_that_allows_everything_changes_nothing(self, kind: str) -> None:
        obs = observations(SPEC, ROWS)
        full = with_masks(obs, np.ones((ROWS, ACTIONS)))

        for how in ({"noise": False}, {"epsilon": 0.3}, {"epsilon": 0.3, "values": True}):
            rngs = [np.random.default_rng(1) for _ in range(2)]
            with_mask, without = (
                one.act(seen, rng, memory=memory_of(one), **how)
                for one, seen, rng in zip(
                    (made(kind), made(kind, PLAIN)), (full, obs["observation"]), rngs, strict=True
                )
            )

            assert np.array_equal(with_mask.action, without.action)
            assert rngs[0].bit_generator.state == rngs[1].bit_generator.state
            if "values" in how:
                assert np.array_equal(with_mask.taken, without.taken)
                assert np.array_equal(with_mask.best, without.best)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if "dqn" in kind or "r2d2" in kind])
    def test_the_best_value_is_that_of_the_best_allowed_action(self, kind: str) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)
        free = with_masks(obs, np.ones((ROWS, ACTIONS)))

        greedy = act(algorithm, obs, noise=False, values=True)
        each = [
            act(algorithm, with_masks(free, np.tile(only, (ROWS, 1))), noise=False, values=True)
            for only in np.eye(ACTIONS)
        ]
        q = np.stack([one.taken for one in each], 1)

        assert np.array_equal(greedy.best, np.where(obs[MASK] > 0, q, -np.inf).max(1))
        assert np.array_equal(greedy.taken, greedy.best)
        assert (greedy.best < act(algorithm, free, noise=False, values=True).best).any()

    def test_a_final_observation_without_a_choice_is_valued_all_the_same(self, kind: str) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)

        none = act(algorithm, with_masks(obs, np.zeros((ROWS, ACTIONS))), noise=False, values=True)
        free = act(algorithm, with_masks(obs, np.ones((ROWS, ACTIONS))), noise=False, values=True)

        assert np.array_equal(none.best, free.best)

    def test_in_torch_it_chooses_as_it_acts(self, kind: str) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)
        memory = memory_of(algorithm)

        wanted = act(algorithm, obs, noise=False)
        given = None if memory is None else torch.from_numpy(memory)
        with torch.inference_mode():
            found, _ = algorithm.greedy(tensors(obs, CPU), given)

        assert np.array_equal(found, wanted.action)

    @pytest.mark.parametrize("kind", SOFT)
    def test_actions_are_drawn_by_the_probabilities_among_those_allowed(self, kind: str) -> None:
        """Six standard deviations of 20,000 draws: a false alarm in 10^8."""
        many, algorithm = 20_000, made(kind)
        one = {name: leaf[:1] for name, leaf in observations(SPEC, 1, seed=3).items()}
        one = with_masks(one, np.array([[1, 0, 1, 1, 0, 0]]))
        with torch.inference_mode():
            prob = torch.softmax(algorithm.scores(tensors(one, CPU))[0][0], 0).numpy()

        obs = {name: np.repeat(leaf, many, 0) for name, leaf in one.items()}
        share = np.bincount(act(algorithm, obs).action, minlength=ACTIONS) / many

        assert (np.abs(share - prob) <= 6 * np.sqrt(prob * (1 - prob) / many)).all()
        assert prob[[1, 4, 5]].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("kind", ["ppo", "a2c", "impala"])
    def test_actor_and_learner_compute_the_same_log_probabilities(self, kind: str) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)
        acted = act(algorithm, obs)

        evaluated, _ = algorithm.evaluate_actions(tensors(obs, CPU), torch.from_numpy(acted.action))

        np.testing.assert_allclose(acted.extras[LOG_PROB], evaluated.log_prob.detach(), atol=1e-5)
        counts = obs[MASK].sum(1)
        assert (evaluated.entropy.detach().numpy() <= np.log(counts) + 1e-5).all()

    @pytest.mark.parametrize("kind", ["dqn", "ppo", "r2d2", "sac"])
    def test_several_actors_at_once_are_answered_as_each_alone(self, kind: str) -> None:
        obs, algorithm = observations(SPEC, ROWS), made(kind)
        memory, parts = memory_of(algorithm), (slice(0, 25), slice(25, ROWS))
        slices = [ActorSlice(rows, np.random.default_rng(i), 0.5) for i, rows in enumerate(parts)]
        generators: Any = BatchedGenerators(slices)

        together = algorithm.act(obs, generators, epsilon=0.5, memory=memory)

        for i, rows in enumerate(parts):
            alone = algorithm.act(
                {name: leaf[rows] for name, leaf in obs.items()},
                np.random.default_rng(i),
                epsilon=0.5,
                memory=None if memory is None else memory[rows],
            )
            assert np.array_equal(together.action[rows], alone.action)


def batch_of(algorithm: Any, forbidden: int | None) -> Batch:
    """Returns a batch in which one action is forbidden everywhere and never taken."""
    rng, sequences = np.random.default_rng(2), algorithm_is_recurrent(algorithm)
    shape = (ROWS, T) if sequences else (ROWS,)
    many = ROWS * (T + 1) if sequences else ROWS
    obs, following = (observations(SPEC, many, seed) for seed in (1, 2))
    for one in (obs, following):
        one[MASK][:] = 1
        if forbidden is not None:
            one[MASK][:, forbidden] = 0
    if sequences:
        obs = {name: leaf.reshape(ROWS, T + 1, -1) for name, leaf in obs.items()}
    floats = {name: rng.normal(size=shape).astype(np.float32) for name in ("a", "b", "c", "d")}
    extras = {LOG_PROB: floats["a"], ADVANTAGE: floats["b"], RETURN: floats["c"]}
    extras[MEMORY] = np.zeros((ROWS, max(1, algorithm.memory)), np.float32)
    extras[FRESH] = np.ones(ROWS, np.float32)
    return Batch(
        obs=tensors(obs, CPU),
        action=torch.from_numpy(rng.integers(1, ACTIONS, shape)),
        reward=torch.from_numpy(floats["d"]),
        discount=torch.full(shape, 0.9),
        next_obs=tensors(following, CPU),
        weight=torch.ones(ROWS),
        rows=np.arange(ROWS),
        mask=torch.ones(shape) if sequences else None,
        extras={name: torch.from_numpy(extra) for name, extra in extras.items()},
    )


def algorithm_is_recurrent(algorithm: Any) -> bool:
    return type(algorithm).__name__ in ("R2d2", "Impala")


def outputs_of(algorithm: Any) -> Iterator[Tensor]:
    """Yields the biases of last layers, as far as they are about actions: [A, K] each."""
    actions = algorithm.spec.action.n
    for name, bias in algorithm.networks.named_parameters():
        if not name.endswith(("out.bias", "head.bias")):
            continue
        if bias.numel() == actions + 1:  # a policy's, and a value
            yield bias[:actions, None]
        elif bias.numel() % actions == 0:
            yield bias.view(actions, -1)


@torch.no_grad()
def praise(algorithm: Any, action: int, much: float) -> None:
    """Makes all networks say more of one action: of its largest return where there are several."""
    for bias in outputs_of(algorithm):
        bias[action, -1] += much


def losses_of(algorithm: Any, batch: Batch) -> list[float]:
    losses = algorithm.losses(batch, step=1, rng=torch.Generator().manual_seed(0))
    return [loss.value.item() for loss in losses]


LOSSES = [kind for kind in KINDS if "dueling" not in kind]  # whose mean is over all actions


class TestLearning:
    @pytest.mark.parametrize("kind", LOSSES)
    def test_nothing_said_of_a_forbidden_action_changes_a_loss(self, kind: str) -> None:
        dueling = {"algo.dueling": False} if "r2d2" in kind else {}
        algorithm = made(kind, **dueling)
        batch = batch_of(algorithm, forbidden=0)
        before = losses_of(algorithm, batch)

        praise(algorithm, 0, 50.0)

        assert losses_of(algorithm, batch) == pytest.approx(before, abs=1e-6)

    @pytest.mark.parametrize("kind", LOSSES)
    def test_what_is_said_of_an_allowed_one_does(self, kind: str) -> None:
        """The control: praise reaches the losses where no mask keeps it away."""
        dueling = {"algo.dueling": False} if "r2d2" in kind else {}
        algorithm = made(kind, **dueling)
        batch = batch_of(algorithm, forbidden=None)
        before = losses_of(algorithm, batch)

        praise(algorithm, 0, 50.0)

        assert losses_of(algorithm, batch) != pytest.approx(before, abs=1e-3)

    def test_gradients_are_finite_under_random_masks(self, kind: str) -> None:
        algorithm = made(kind)
        batch = batch_of(algorithm, forbidden=0)
        rng = np.random.default_rng(0)
        for obs in (batch.obs, batch.next_obs):
            mask = random_masks(obs[MASK][..., 0].numel(), ACTIONS, rng)
            mask[::7] = 0  # final observations
            obs[MASK] = torch.from_numpy(mask.reshape(obs[MASK].shape))

        for loss in algorithm.losses(batch, step=1, rng=torch.Generator().manual_seed(0)):
            loss.value.backward()
            assert loss.value.isfinite()
        grads = [p.grad for p in algorithm.networks.parameters() if p.grad is not None]

        assert grads
        assert all(grad.isfinite().all() for grad in grads)

    @pytest.mark.parametrize("double", [True, False])
    def test_a_target_bootstraps_from_the_best_allowed_action(self, double: bool) -> None:
        """By hand: values 5, 1, 3 of which the first is forbidden; 1 + 0.5 * 3."""
        spec = spec_of("three", fenced(3), spaces.Discrete(3))
        algorithm: Any = made("dqn", spec, **{"net.hidden": [], "algo.double": double})
        for network in (algorithm.online, algorithm.target.network):
            network.body.out.weight.data.zero_()
            network.body.out.bias.data = torch.tensor([5.0, 1.0, 3.0])
        obs = {"observation": torch.zeros(2, WIDTH), MASK: torch.tensor([[0, 1, 1], [0, 0, 0]])}
        batch = Batch(
            obs,
            torch.tensor([1, 1]),
            torch.ones(2),
            torch.full((2,), 0.5),
            obs,
            torch.ones(2),
            np.arange(2),
        )

        wanted = algorithm._bellman_target(batch, torch.Generator())

        assert wanted.tolist() == [2.5, 3.5]  # the second one's mask allows nothing: any action

    def test_few_allowed_actions_do_not_drive_the_temperature_up(self) -> None:
        """A policy that is as undecided as it can be has more entropy than half of the most."""
        algorithm = made("sac")
        with torch.no_grad():
            algorithm.policy.out.weight.zero_()
            algorithm.policy.out.bias.zero_()
        batch = batch_of(algorithm, forbidden=None)
        batch.obs[MASK][:, 2:] = 0

        *_, last = algorithm.losses(batch, step=1, rng=torch.Generator())
        last.value.backward()

        assert last.group == "temperature"
        assert algorithm.temperature.log.grad > 0  # descending lowers it


class Whole(nn.Module):
    """A network of a user's own, which says what it was given."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.outputs, self.seen = outputs, list[str]()
        self.layer = nn.Linear(1, outputs)

    def forward(self, obs: Any) -> Tensor:
        self.seen = sorted(obs)
        return self.layer(obs["observation"][:, :1])


class TestNetworks:
    def test_they_never_see_the_mask(self) -> None:
        features = Features(SPEC, normalize=False)
        one, other = (tensors(observations(SPEC, 4), CPU) for _ in range(2))
        other[MASK] = 1 - other[MASK]

        assert features.names == ["observation"]
        assert features.width == WIDTH
        assert torch.equal(features(one), features(other))

    def test_statistics_leave_it_out(self) -> None:
        features = Features(SPEC, normalize=True)

        observe(normalizers(features), tensors(observations(SPEC, 50), CPU))

        (encoder,) = features.encoders
        assert encoder.norm.mean.shape == (WIDTH,)  # type: ignore[union-attr]
        assert encoder.norm.count == 50  # type: ignore[union-attr]

    def test_one_flat_leaf_beside_a_mask_is_asked_as_quickly_as_a_vector(self) -> None:
        net, obs = build(NetConfig(hidden=(16,)), SPEC, 2), observations(SPEC, 9)
        calls: list[int] = []
        net.register_forward_hook(lambda *_: calls.append(1))

        found = FastForward(net)(obs)

        assert not calls
        np.testing.assert_allclose(found, net(tensors(obs, CPU)).detach(), atol=1e-5)

    def test_several_leaves_beside_a_mask_go_through_torch(self) -> None:
        spec = replace(SPEC, obs=(*SPEC.obs, Leaf("more", (2,), "float32", LeafKind.VECTOR)))
        obs = {**observations(SPEC, 3), "more": np.ones((3, 2), np.float32)}
        net = build(NetConfig(hidden=(16,)), spec, 2)

        assert CompiledMlp.of(net) is None
        assert FastForward(net)(obs).shape == (3, 2)

    def test_a_dict_of_one_leaf_is_plain_only_beside_a_mask(self) -> None:
        assert is_plain(SPEC)
        assert is_plain(PLAIN)
        assert not is_plain(replace(SPEC, obs=(SEEN,)))

    def test_one_of_a_users_own_is_given_everything(self) -> None:
        net: Any = build(NetConfig(custom="test_masking:Whole"), SPEC, ACTIONS)

        net(tensors(observations(SPEC, 2), CPU))

        assert net.seen == [MASK, "observation"]


class TestBestOrOther:
    @pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
    def test_it_chooses_what_the_best_and_some_other_make_together(self, epsilon: float) -> None:
        rng = np.random.default_rng(0)
        scores = rng.integers(-2, 3, (400, ACTIONS)).astype(np.float32)  # with equals
        odd = rng.random(scores.shape)
        scores[odd < 0.05], scores[odd > 0.95], scores[odd > 0.98] = np.nan, np.inf, -np.inf
        given = random_masks(400, ACTIONS, rng)
        given[:20] = 0  # allows nothing, so it restricts nothing
        mask = allowed({MASK: given}, SPEC)

        chosen = greedy_or_random(scores, given, epsilon, np.random.default_rng(1))

        best = masked(scores, mask).argmax(1)
        assert (
            chosen == explore_discrete(best, ACTIONS, epsilon, np.random.default_rng(1), mask)
        ).all()
        assert mask[np.arange(400), chosen].all()

"""R2D2: its losses step by step in plain Python, what is learned from, and what is remembered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch.nn import functional as F

from rookery.actors.policy import InferencePolicy, recipe
from rookery.algorithms import build_algorithm, row_spec
from rookery.algorithms.algorithm import Loss
from rookery.algorithms.r2d2 import FRESH, MEMORY, R2d2, inverse_rescale, rescale
from rookery.api.dqn_agent import DqnAgent
from rookery.api.rollout_worker import rollout_worker
from rookery.config.algorithms import DqnConfig, R2d2Config
from rookery.config.load import load
from rookery.config.schema import (
    Config,
    EnvConfig,
    LearnerConfig,
    NetConfig,
    Recurrent,
    ReplayConfig,
    SharingConfig,
)
from rookery.errors import ConfigError
from rookery.learner.learner import Learner
from rookery.replay.buffer import LocalReplay
from rookery.replay.ring import schema_of
from rookery.sharing.mixed_batches import BORROWED
from rookery.sharing.pool_member import PoolMember
from rookery.types import ActionSpec, Array, Batch, End, EnvSpec
from scripted_roles import Life, Script, actor, flat_spec, vector

B, GAMMA = 6, 0.9
SMALL = NetConfig(hidden=(5,), memory=4)
RECALL = "rookery.envs.toy.recall:Recall"


def made(net: NetConfig = SMALL, **settings: Any) -> R2d2:
    """Returns an algorithm whose target differs from its trained network."""
    torch.manual_seed(3)
    algorithm = R2d2(R2d2Config(gamma=GAMMA, **settings), net, EnvConfig(), flat_spec(3, 3))
    for parameter in algorithm.target.network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return algorithm


def sequences(algorithm: R2d2, *, steps: tuple[int, ...] | None = None) -> Batch:
    """Returns B sequences: whole ones, and such as end by death or by a time limit."""
    torch.manual_seed(4)
    length = algorithm.config.sequence
    counts = torch.tensor(steps or (length, length, length - 1, length - 1, length - 2, length))
    there = torch.arange(length) < counts[:, None]
    dies = torch.tensor([False, True, True, False, True, False])
    last = torch.arange(length) == counts[:, None] - 1
    mask = there.float()
    fresh = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    return Batch(
        obs=torch.randn(B, length + 1, 3),
        action=torch.randint(3, (B, length)),
        reward=3.0 * torch.randn(B, length) * mask,
        discount=GAMMA * mask * ~(last & dies[:, None]),
        next_obs=None,
        weight=torch.rand(B) + 0.1,
        rows=np.arange(B),
        mask=mask,
        extras={MEMORY: torch.randn(B, algorithm.memory) * (1 - fresh[:, None]), FRESH: fresh},
    )


def loss_of(algorithm: R2d2, batch: Batch) -> Loss:
    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())
    return loss


def remembered(algorithm: R2d2, network: Any, batch: Batch, b: int) -> list[torch.Tensor]:
    """Returns the values at every observation of one sequence, one step after another."""
    burn_in = 0 if batch.extras[FRESH][b] else algorithm.config.burn_in
    memory, values = batch.extras[MEMORY][b : b + 1], []
    for t in range(batch.obs.shape[1]):
        if t == burn_in:
            memory = memory.detach()
        q, memory = network(batch.obs[b, t][None], memory)
        values.append(q[0])
    return values


def plain(algorithm: R2d2, batch: Batch) -> tuple[torch.Tensor, list[float]]:
    """Returns the loss and the priorities as they are defined."""
    config, total, count, priorities = algorithm.config, torch.zeros(()), 0, []
    identity = not config.rescale
    for b in range(B):
        q = remembered(algorithm, algorithm.online, batch, b)
        target = remembered(algorithm, algorithm.target.network, batch, b)
        steps, errors = int(batch.mask[b].sum()), []
        for t in range(0 if batch.extras[FRESH][b] else config.burn_in, steps):
            stop = min(t + config.n_step, steps)
            wanted, factor = 0.0, 1.0
            for k in range(t, stop):
                wanted += factor * batch.reward[b, k].item()
                factor *= batch.discount[b, k].item()
            best = (q if config.double else target)[stop].argmax()
            ahead = target[stop][best].detach()
            ahead = ahead if identity else inverse_rescale(ahead)
            aim = wanted + factor * ahead
            aim = aim if identity else rescale(aim)
            error = aim - q[t][batch.action[b, t]]
            total = total + batch.weight[b] * F.huber_loss(error, torch.zeros(()))
            count += 1
            errors.append(abs(error.item()))
        mean = sum(errors) / max(1, len(errors))
        priorities.append(config.eta * max(errors, default=0.0) + (1 - config.eta) * mean)
    return total / max(1, count), priorities


CASES: dict[str, dict[str, Any]] = {
    "as published": {},
    "one step": {"n_step": 1},
    "without burn-in": {"burn_in": 0},
    "raw values": {"rescale": False},
    "single, not dueling": {"double": False, "dueling": False},
    "priority by the mean": {"eta": 0.0},
}


@pytest.mark.parametrize("kind", [Recurrent.LSTM, Recurrent.GRU])
@pytest.mark.parametrize("case", CASES)
def test_loss_priorities_and_gradient_are_those_of_single_steps(case: str, kind: Any) -> None:
    settings = {"n_step": 3, "length": 4, "burn_in": 3, "overlap": 2} | CASES[case]
    algorithm = made(NetConfig(hidden=(5,), memory=4, recurrent=kind), **settings)
    batch = sequences(algorithm)
    parameters = list(algorithm.online.parameters())
    value, priorities = plain(algorithm, batch)

    loss = loss_of(algorithm, batch)

    assert loss.value.item() == pytest.approx(value.item(), rel=1e-5)
    assert loss.td_error is not None
    assert loss.td_error.tolist() == pytest.approx(priorities, rel=1e-4)
    found = torch.autograd.grad(loss.value, parameters)
    for mine, theirs in zip(found, torch.autograd.grad(value, parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_burning_in_alone_teaches_nothing_and_breaks_nothing() -> None:
    """Replay does not draw such sequences; one that is given by hand does no harm."""
    algorithm = made(length=2, burn_in=3, overlap=0)
    batch = sequences(algorithm, steps=(1,) * B)
    batch.extras[FRESH][:] = 0.0

    loss = loss_of(algorithm, batch)

    assert loss.value.item() == 0.0
    assert loss.td_error is not None
    assert loss.td_error.tolist() == [0.0] * B


def test_a_time_limit_bootstraps_from_the_last_observation_alone() -> None:
    """Padding after it is never looked at."""
    algorithm = made(length=4, burn_in=2, overlap=0, n_step=3)
    batch = sequences(algorithm, steps=(4,) * B)
    other = batch._replace(obs=batch.obs.clone())
    other.obs[:, 5:] += 100.0

    assert loss_of(algorithm, other).value.item() == loss_of(algorithm, batch).value.item()


def test_rescaling_has_an_inverse_over_seven_orders_of_magnitude() -> None:
    x = torch.tensor([0.0, 1e-3, 0.5, 1.0, 37.0, 1e4])
    x = torch.cat([x, -x])

    torch.testing.assert_close(inverse_rescale(rescale(x)), x, rtol=2e-6, atol=2e-7)
    assert rescale(torch.tensor(3.0)).item() == pytest.approx(1.003)


@pytest.mark.parametrize(
    ("settings", "copied"),
    [({"target_period": 3}, [False, False, True]), ({"target_tau": 1.0}, [True] * 3)],
)
def test_the_target_follows_as_it_is_told(settings: dict[str, Any], copied: list[bool]) -> None:
    algorithm = made(**settings)
    leader = algorithm.online.head.weight
    follower = algorithm.target.network.get_parameter("head.weight")

    seen = []
    for step in (1, 2, 3):
        leader.data += 1.0
        algorithm.update_targets(step)
        seen.append(torch.equal(leader, follower))

    assert seen == copied


class TestActing:
    def test_what_it_remembers_is_what_it_hands_on(self) -> None:
        algorithm, rng = made(), np.random.default_rng(0)
        obs = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)  # [T, E, 3]
        memory = np.zeros((2, algorithm.memory), dtype=np.float32)

        values = []
        for seen in obs:
            acted = algorithm.act(seen, rng, values=True, memory=memory)
            assert acted.memory is not None
            assert acted.best is not None
            assert acted.extras[MEMORY] is memory
            memory = acted.memory
            values.append(acted.best)

        start = torch.zeros(2, algorithm.memory)
        q, _ = algorithm.online.unroll(torch.from_numpy(obs.swapaxes(0, 1)), start)
        best = inverse_rescale(q.detach().amax(2)).T
        np.testing.assert_allclose(np.stack(values), best.numpy(), rtol=1e-4, atol=1e-6)

    def test_rows_say_where_an_episode_begins(self) -> None:
        algorithm, rng = made(), np.random.default_rng(0)
        memory = np.zeros((2, algorithm.memory), dtype=np.float32)
        memory[1] = algorithm.act(np.ones((1, 3), dtype=np.float32), rng).memory

        acted = algorithm.act(np.ones((2, 3), dtype=np.float32), rng, memory=memory)

        assert acted.extras[FRESH].tolist() == [1.0, 0.0]

    def test_epsilon_is_the_share_of_random_actions(self) -> None:
        algorithm, obs = made(), np.zeros((3_000, 3), dtype=np.float32)
        greedy = algorithm.act(obs, np.random.default_rng(0)).action
        acted = algorithm.act(obs, np.random.default_rng(0), epsilon=0.5).action

        assert len(set(greedy.tolist())) == 1
        assert np.mean(acted != greedy) == pytest.approx(0.5 * 2 / 3, abs=0.04)


LIVES = (
    Life((1.0, 2.0, 3.0), End.TERMINATED),
    Life((1.0,), End.TRUNCATED),
    Life(tuple(range(9)), End.TRUNCATED),
)
TINY = R2d2Config(gamma=GAMMA, length=2, burn_in=2, overlap=0, n_step=1)


def replayed(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> tuple[R2d2, LocalReplay]:
    """Returns an algorithm, and what two environments played with it."""
    envs = vector([Script(number, LIVES, 3) for number in range(2)], mode)
    algorithm = R2d2(TINY, SMALL, EnvConfig(), envs.spec)
    player = actor(envs, algorithm)
    player.collect(60, epsilon=0.5)
    replay = LocalReplay(
        row_spec(envs.spec, algorithm),
        ReplayConfig(capacity=200, learning_starts=1, batch_size=1),
        TINY,
        rng=np.random.default_rng(0),
        transports=[player.ring],
        envs=2,
    )
    replay.insert()
    return algorithm, replay


class TestReplay:
    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
    def test_a_sequence_begins_with_the_memory_its_actor_had(self, mode: AutoresetMode) -> None:
        """Observations tell episode and step, so it can be computed anew from the beginning."""
        algorithm, replay = replayed(mode)
        batch = replay.sample(64)

        for obs, memory, fresh in zip(batch.obs, *batch.extras.values(), strict=True):
            number, episode, t = obs[0].tolist()
            assert fresh == (t == 0)
            known = torch.zeros(1, algorithm.memory)
            for step in range(int(t)):
                known = algorithm.online(torch.tensor([[number, episode, float(step)]]), known)[1]
            np.testing.assert_allclose(memory, known.detach().numpy()[0], rtol=1e-5, atol=1e-6)

    def test_every_step_of_an_episode_is_learned_from_and_every_sequence_teaches(self) -> None:
        """Each with a full burn-in, or from the episode's beginning on."""
        algorithm, replay = replayed()
        rows = np.flatnonzero(replay.chains.closed)
        batch = replay._gather(rows, np.ones(len(rows), dtype=np.float32), replay.rng)

        tensors = batch._replace(
            mask=torch.from_numpy(batch.mask),
            extras={name: torch.from_numpy(extra) for name, extra in batch.extras.items()},
        )
        taught = algorithm._loss_mask(tensors).numpy()

        assert (taught.sum(1) > 0).all()
        learned = {tuple(o) for b, t in np.argwhere(taught) for o in [batch.obs[b, t].tolist()]}
        for number in range(2):
            for episode in range(5):  # those that have ended for sure
                for t in range(len(LIVES[episode % 3].rewards)):
                    assert (number, episode, t) in learned


class TestSharing:
    def member(self, folder: Path, name: str, spec: EnvSpec) -> PoolMember:
        sharing = SharingConfig(pool=str(folder / "pool"), cross_sample_ratio=0.5)
        return PoolMember(Config(algo=TINY, sharing=sharing), spec, name)

    def lent(self, part: PoolMember, steps: int, seed: int) -> tuple[R2d2, LocalReplay]:
        envs = vector([Script(seed, LIVES, 3)], AutoresetMode.SAME_STEP)
        algorithm = R2d2(TINY, SMALL, EnvConfig(), envs.spec)
        player = actor(envs, algorithm)
        player.collect(steps, epsilon=0.5)
        replay = LocalReplay(
            part.spec,
            ReplayConfig(capacity=200, learning_starts=1, batch_size=1),
            TINY,
            rng=np.random.default_rng(0),
            transports=[player.ring],
            envs=1,
            ring=part.ring(0, schema_of(part.spec), 200),
        )
        replay.insert()
        return algorithm, replay

    def test_borrowed_sequences_come_without_the_memory_of_another_network(
        self, tmp_path: Path
    ) -> None:
        spec = row_spec(replayed()[1].spec, made())
        own, other = (self.member(tmp_path, name, spec) for name in ("own", "other"))
        algorithm, replay = self.lent(own, 60, seed=1)
        self.lent(other, 60, seed=2)

        batch = own.sample(replay, 32, 1.0)

        foreign = batch.rows == BORROWED
        theirs = batch.obs[:, 0, 0] == 2
        assert foreign.sum() == 16
        assert (theirs == foreign).all()
        assert batch.obs.shape[:2] == (32, TINY.sequence + 1)
        assert not batch.extras[MEMORY][foreign].any()
        assert batch.extras[MEMORY][~foreign].any()
        begins = batch.obs[:, 0, 2] == 0
        assert (batch.extras[FRESH] == begins).all()
        learner = Learner(algorithm, LearnerConfig(), EnvConfig(), torch.device("cpu"))
        facts = learner.learn(batch)
        assert facts.td_error is not None
        assert (facts.td_error[foreign] > 0).all()


def values(policy: InferencePolicy) -> list[Array]:
    return list(policy.get_weights().values())


class TestPolicies:
    def policy(self, **settings: Any) -> InferencePolicy:
        made_from = recipe(RECALL, {"algo.name": "r2d2", "net.memory": 8, **settings})
        return InferencePolicy(made_from, *made_from.spaces())

    def test_it_remembers_until_it_is_reset(self) -> None:
        given, shown = self.policy(), np.eye(4, dtype=np.float32)
        seen: list[Any] = []
        act = given.algorithm.act
        given.algorithm.act = lambda obs, rng, **how: (
            seen.append(how["memory"])
            or act(  # type: ignore
                obs, rng, **how
            )
        )

        for obs in shown[:3]:
            given.act(obs)
        given.reset()
        given.act(shown[0])

        assert [not memory.any() for memory in seen] == [True, False, False, True]

    @pytest.mark.parametrize("recurrent", ["none", "gru"])
    @pytest.mark.parametrize("dueling", [False, True])
    def test_its_network_is_read_off_its_weights(self, recurrent: str, dueling: bool) -> None:
        given = self.policy(**{"net.recurrent": recurrent, "algo.dueling": dueling})

        found = InferencePolicy.of(given.get_weights(), RECALL)

        assert found.recipe.config.algo == given.recipe.config.algo
        assert found.recipe.config.net.recurrent == ("gru" if recurrent == "gru" else "lstm")
        assert all((a == b).all() for a, b in zip(*map(values, (found, given)), strict=True))

    def test_it_plays_rollouts(self) -> None:
        played = rollout_worker(self.policy(), episodes=2, seed=1)

        assert [trajectory.env_steps for trajectory in played] == [10, 10]

    def test_trajectories_without_memory_are_refused(self) -> None:
        (trajectory,) = rollout_worker(self.policy(), episodes=1)
        agent = DqnAgent.new(RECALL, settings={"algo.name": "r2d2", "net.memory": 8})

        with pytest.raises(
            ConfigError, match=r"have no memory, fresh, which algo\.name r2d2 needs; use dqn"
        ):
            agent.add_trajectory_to_buffer(trajectory)


class TestSettings:
    def test_without_a_word_it_remembers_by_an_lstm(self) -> None:
        config = load("recall")
        algorithm = build_algorithm(config, flat_spec(4, 2))

        assert config.net.recurrent is Recurrent.NONE
        assert algorithm.memory == 2 * config.net.memory

    def test_an_algorithm_without_memory_refuses_a_recurrent_layer(self) -> None:
        with pytest.raises(ConfigError, match=r"takes net\.recurrent none only, got lstm; .*r2d2"):
            Config(algo=DqnConfig(), net=NetConfig(recurrent=Recurrent.LSTM))

    def test_continuous_actions_are_refused(self) -> None:
        spec = EnvSpec("swing", flat_spec().obs, ActionSpec(shape=(1,), low=(-1.0,), high=(1.0,)))

        with pytest.raises(ConfigError, match=r"r2d2 needs Discrete actions.*use sac or ppo"):
            R2d2(R2d2Config(), SMALL, EnvConfig(), spec)

    def test_what_is_made_for_single_transitions_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"r2d2 takes replay\.hindsight .* only"):
            load("recall", overrides=["replay.hindsight=0.5"])

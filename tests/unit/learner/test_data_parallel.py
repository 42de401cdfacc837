"""Learners that share every batch: one gradient, equal weights, and nothing that only one knows."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data_parallel_learners import (
    CHOICE,
    MOTION,
    ROWS,
    UNLUCKY,
    alone,
    batch,
    free_place,
    sequences,
    settings,
    together,
)
from eventually import eventually
from rookery.algorithms.actor_critic import LOG_PROB
from rookery.algorithms.r2d2 import FRESH, MEMORY
from rookery.cli import train
from rookery.config.algorithms import (
    AlgoConfig,
    DqnConfig,
    ImpalaConfig,
    PpoConfig,
    R2d2Config,
    SacConfig,
    Td3Config,
    TqcConfig,
    Values,
)
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.errors import ConfigError, LostError
from rookery.learner.data_parallel import collectives, follower, leader
from rookery.learner.data_parallel.collectives import listen
from rookery.learner.data_parallel.follower import check_learners, device_of, rank_of
from rookery.learner.data_parallel.leader import LeaderLearner
from rookery.learner.data_parallel.serialization import batch_of, named_arrays, pack, unpack
from rookery.learner.learner import Learner
from rookery.networks.named_arrays import arrays_of
from rookery.replay.shared_arrays import ArrayLayout
from rookery.terminal.arguments import Parser, parse
from thread_engine import threads

__all__ = ["threads"]  # a fixture

pytestmark = pytest.mark.usefixtures("threads")
STEPS = 4


@pytest.fixture(autouse=True)
def _compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all weights compared before every step."""
    monkeypatch.setattr(leader, "CHECK_PERIOD", 1)


def remembering(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    memory = rng.normal(size=(ROWS, 8)).astype(np.float32)
    fresh = (np.arange(ROWS) % 3 == 0).astype(np.float32)
    return sequences(seed, 6, **{MEMORY: memory, FRESH: fresh})


def played(seed: int) -> Any:
    log_prob = np.random.default_rng(seed).normal(size=(ROWS, 4)).astype(np.float32)
    return sequences(seed, 4, **{LOG_PROB: log_prob})


CASES: dict[str, tuple[AlgoConfig, Any, Any]] = {
    "dqn": (DqnConfig(target_period=2, double=True, dueling=True), CHOICE, batch),
    "quantiles": (DqnConfig(values=Values.QUANTILES, target_period=2), CHOICE, batch),
    "discrete sac": (SacConfig(), CHOICE, batch),
    "td3": (Td3Config(target_policy_noise=0.0), MOTION, lambda seed: batch(seed, MOTION)),
    "r2d2": (R2d2Config(burn_in=2, length=4, overlap=2, target_period=2), CHOICE, remembering),
    "impala": (ImpalaConfig(length=4), CHOICE, played),
}


@pytest.mark.parametrize(("case", "learners"), [*((case, 2) for case in CASES), ("dqn", 4)])
def test_learners_that_share_a_batch_equal_one_that_has_all_of_it(case, learners):
    algo, spec, draw = CASES[case]
    one = alone(settings(algo), spec)

    with together(settings(algo, learners=learners), spec) as several:
        for seed in range(STEPS):
            whole, shared = one.learn(draw(seed)), several.learn(draw(seed))
            assert whole.metrics.keys() == shared.metrics.keys()
            for name, value in whole.metrics.items():
                assert float(shared.metrics[name]) == pytest.approx(float(value), abs=1e-5)
            if whole.td_error is not None:
                np.testing.assert_allclose(shared.td_error, whole.td_error, atol=1e-5)

    ours, theirs = (arrays_of(learner.algorithm.networks) for learner in (one, several))
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_group_of_one_is_the_plain_learner_bit_for_bit(optimizer):
    config = settings(SacConfig(), learners=1, optimizer=optimizer)
    one = alone(config, MOTION)

    with together(config, MOTION) as group:
        for seed in range(STEPS):
            plain, shared = one.learn(batch(seed, MOTION)), group.learn(batch(seed, MOTION))
            np.testing.assert_array_equal(plain.td_error, shared.td_error)

    assert one.weights_sha256() == group.weights_sha256()


def test_one_learner_is_no_group_at_all():
    from rookery.training.build import _kind

    algorithm = alone(settings(DqnConfig(), learners=1), CHOICE).algorithm
    for learners, kind in ((1, Learner), (2, LeaderLearner)):
        assert (
            _kind(settings(DqnConfig(), learners=learners), algorithm, torch.device("cpu")) is kind
        )


@pytest.mark.parametrize(
    ("algo", "spec"),
    [(SacConfig(), MOTION), (TqcConfig(), MOTION), (DqnConfig(noisy=True), CHOICE)],
)
def test_where_every_learner_draws_noise_of_its_own_weights_stay_equal(algo, spec):
    """They are compared before each step, in which those who differ would fail."""
    config = settings(algo, optimizer="adam", lr_decay="linear")

    with together(config, spec) as lead:
        for seed in range(STEPS):
            lead.advance(seed / STEPS)
            lead.learn(batch(seed, spec))

        assert lead.learner_steps == STEPS


def test_noise_follows_from_the_seed_and_the_step_so_that_a_run_goes_on_exactly():
    config = settings(SacConfig(), optimizer="adam")
    with together(config, MOTION) as whole:
        for seed in range(4):
            whole.learn(batch(seed, MOTION))

    with together(config, MOTION) as first:
        for seed in range(2):
            first.learn(batch(seed, MOTION))
        saved = first.state()
    with together(config, MOTION) as second:
        second.restore(*saved)
        for seed in range(2, 4):
            second.learn(batch(seed, MOTION))

    assert second.weights_sha256() == whole.weights_sha256()


def test_learners_have_different_noise():
    config = settings(SacConfig())
    same = batch(0, MOTION)
    half = ROWS // 2
    doubled = batch_of(
        {name: np.concatenate([a[:half]] * 2) for name, a in named_arrays(same).items()}
    )

    with together(config, MOTION) as lead:
        td_error = lead.learn(doubled).td_error

    assert not np.array_equal(td_error[:half], td_error[half:])


def test_statistics_and_rates_come_with_each_slice():
    env = {"normalize_obs": True, "normalize_reward": True}
    config = settings(DqnConfig(target_period=2), env=env, lr_decay="linear")
    one = alone(config)

    with together(config) as several:
        for seed in range(STEPS):
            for learner in (one, several):
                seen = np.random.default_rng(seed).normal(2.0, 3.0, (20, 3)).astype(np.float32)
                learner.observe({"": seen}, seen[:, 0])
                learner.advance(seed / STEPS)
                learner.learn(batch(seed))

    ours, theirs = one.weights(), several.weights()
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, atol=1e-5, err_msg=name)


def test_statistics_that_a_network_keeps_for_itself_are_the_first_learners():
    config = settings(DqnConfig(target_period=2), net={"custom": "data_parallel_learners:Counting"})

    with together(config) as lead:
        for seed in range(STEPS):
            lead.learn(batch(seed))

        assert lead.learner_steps == STEPS


def test_a_step_that_is_not_finite_for_one_is_skipped_by_all():
    bad = batch(1)
    bad.reward[-1] = np.nan  # in the last slice

    with together(settings(DqnConfig())) as lead:
        before = lead.weights_sha256()
        skipped = lead.learn(bad)
        assert lead.weights_sha256() == before
        learned = [lead.learn(batch(seed)) for seed in range(STEPS)]

    assert skipped.td_error is None
    assert not skipped.metrics
    assert (lead.skipped, lead.bad_steps, lead.learner_steps) == (1, 0, STEPS)
    assert all(np.isfinite(one.td_error).all() for one in learned)


def test_a_learner_whose_weights_differ_ends_the_run():
    with together(settings(DqnConfig())) as lead:
        lead.learn(batch(0))
        with torch.no_grad():
            next(lead.algorithm.acting.parameters()).add_(1e-6)

        with pytest.raises(LostError, match="learner 1 no longer has the weights of learner 0"):
            lead.learn(batch(1))


def test_a_learner_that_fails_ends_the_run_with_its_traceback():
    unlucky = batch(1)
    unlucky.reward[-1] = UNLUCKY
    algo = load("corridor", changes={"algo": "data_parallel_learners:Superstitious"}).algo

    with together(settings(algo)) as lead:
        lead.learn(batch(0))
        with pytest.raises(LostError, match=r"number 1 of 2 learners was lost .*thirteen") as lost:
            lead.learn(unlucky)

    (traceback,) = lost.value.__notes__
    assert 'raise ArithmeticError("thirteen")' in traceback


class TestRefused:
    def test_batches_that_have_no_equal_slices(self):
        with pytest.raises(
            ConfigError,
            match=r"replay\.batch_size .* 3 equal slices, got 64; .* multiple of 3",
        ):
            load("corridor", changes={"learner.replicas": 3, "replay.batch_size": 64})

    def test_algorithms_that_learn_from_rollouts(self):
        with pytest.raises(
            ConfigError,
            match=r"ppo takes learner\.replicas 1 only, got 2; use an off-pol",
        ):
            Config(algo=PpoConfig(), learner=settings(DqnConfig()).learner)

    def test_learners_sent_away(self):
        away = {"run.engine": "ray", "run.mode": "async", "cluster.address": "auto"}
        with pytest.raises(ConfigError, match=r"resources takes learner\.replicas 1 only, got 2"):
            load(
                "corridor",
                changes={"learner.replicas": 2, "cluster.learner_resources": {"GPU": 1.0}} | away,
            )

    def test_more_learners_than_gpus(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        changes = {"learner.device": "auto", "replay.batch_size": 60}

        check_learners(load("corridor", changes=changes | {"learner.replicas": 2}))
        with pytest.raises(
            ConfigError, match=r"3 learners need a GPU each, .* has 2; lower --lear"
        ):
            check_learners(load("corridor", changes=changes | {"learner.replicas": 3}))
        check_learners(
            load("corridor", changes=changes | {"learner.replicas": 3, "learner.device": "cpu"})
        )

    @pytest.mark.parametrize("place", ["here", "a b:1", "host:0", "host:", ":29500"])
    def test_a_rendezvous_that_is_no_place(self, place):
        with pytest.raises(ConfigError, match=r"learner\.rendezvous must be HOST:PORT"):
            load("corridor", changes={"learner.rendezvous": place, "learner.replicas": 2})

    def test_a_rendezvous_of_one(self):
        with pytest.raises(ConfigError, match=r"is for several learners, got learner\.replicas 1"):
            load("corridor", changes={"learner.rendezvous": "host:29500"})

    def test_a_place_that_is_not_ours(self):
        with pytest.raises(ConfigError, match=r"learner\.rendezvous 192\.0\.2\.1:29500 cannot be"):
            listen("192.0.2.1:29500")

    @pytest.mark.parametrize("rank", ["2", "-1", "one"])
    def test_a_rank_that_does_not_exist(self, rank, monkeypatch):
        monkeypatch.setenv("RANK", rank)
        config = settings(DqnConfig(), rendezvous="127.0.0.1:29500")

        with pytest.raises(ConfigError, match=r"RANK is .* have the ranks 0 to 1"):
            rank_of(config)
        assert rank_of(settings(DqnConfig())) == 0

    def test_a_rank_above_0_for_a_run(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")

        with pytest.raises(ConfigError, match="RANK is 1, which makes this process a"):
            check_learners(settings(DqnConfig(), rendezvous="127.0.0.1:29500"))

    def test_several_runs_at_one_rendezvous(self):
        flags = ("--learners", "2", "--seeds", "0,1", "--set", "learner.rendezvous=127.0.0.1:1")

        with pytest.raises(ConfigError, match=r"serves one run, got 2 --seeds; use --seed"):
            train.run(asked("corridor", *flags))


def asked(*argv: str) -> Any:
    parser = Parser(prog="rookery train", description=None)
    train.add_arguments(parser)
    return parse(parser, list(argv))


def test_the_flag_is_short_for_the_setting():
    (config,) = train.plan(asked("corridor", "--learners", "4"))

    assert config.learner.replicas == 4


class TestPlaces:
    def test_each_learner_has_the_next_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        config = settings(DqnConfig(), learners=4, device="cuda:2")

        assert [device_of(config, rank).index for rank in range(4)] == [2, 3, 0, 1]

    def test_of_another_host_each_learner_has_the_one_it_asks_for(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        config = settings(DqnConfig(), learners=4, device="cuda:1", rendezvous="a:1")

        assert {device_of(config, rank).index for rank in range(4)} == {1}


class TestWaiting:
    def test_looking_around_while_waiting_changes_nothing(self, monkeypatch):
        monkeypatch.setattr(collectives, "POLL", timedelta(microseconds=100))
        one = alone(settings(DqnConfig()))

        with together(settings(DqnConfig())) as several:
            for seed in range(STEPS):
                one.learn(batch(seed))  # meanwhile the others wait
                several.learn(batch(seed))

        for name, array in one.weights().items():
            np.testing.assert_allclose(several.weights()[name], array, atol=1e-5)

    def test_a_learner_that_keeps_the_others_waiting_is_lost(self):
        config = settings(DqnConfig(), replica_timeout_s=3.0)

        with together(config) as lead:
            lead.followers.check(2.0)
            with pytest.raises(LostError, match=r"kept the others waiting for 3 s \(learner\.repl"):
                lead.followers.check(3.0)
            lead.followers.intact = True  # it was not so, after all

    def test_a_replica_asks_now_and_then_whether_its_run_is_there(self):
        def check(keys: list[str]) -> bool:
            raise RuntimeError("no route to host")

        made = follower.FollowerWorker.__new__(follower.FollowerWorker)
        made.config, made.rank = settings(DqnConfig(), rendezvous="far:29500"), 1
        made._store = SimpleNamespace(check=check)

        made.check(9.0)
        with pytest.raises(LostError, match="learner 1 lost the run at far:29500: no route to hos"):
            made.check(10.0)

    def test_those_who_do_not_come_are_named(self, monkeypatch):
        monkeypatch.setattr(leader, "START_S", 0.02)
        config = settings(DqnConfig(), learners=4, rendezvous=free_place())
        lead = alone(config, kind=LeaderLearner)
        lead.start_followers(config, CHOICE)

        with pytest.raises(LostError, match=r"of 4 learners, 1, 2, 3 did not .*RANK=1 and the"):
            lead.connect()
        lead.close()

    def test_one_without_a_heartbeat_is_lost_also_where_no_connection_broke(self, monkeypatch):
        """Gloo does not always notice that the process at the other end was killed."""
        now, counts = [0.0], {"alive/1": 0, "alive/2": 0}
        monkeypatch.setattr(collectives, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monitor = collectives.HeartbeatMonitor(SimpleNamespace(add=lambda k, n: counts[k]), [1, 2])

        seen = []
        for second in range(30):
            now[0] = float(second)
            counts["alive/1"] += 1
            counts["alive/2"] += second < 5
            seen.append(monitor.silent())

        dead = 4 + collectives.SILENT_S
        assert seen == [2 if second > dead else None for second in range(30)]

    def test_a_follower_sends_heartbeats_until_it_is_closed(self, monkeypatch):
        monkeypatch.setattr(collectives, "BEAT_S", 0.001)
        counted: list[tuple[str, int]] = []
        store = SimpleNamespace(add=lambda key, amount: counted.append((key, amount)))

        heartbeat = collectives.FollowerHeartbeat(store, 3)

        assert eventually(lambda: len(counted) > 3, 5.0)
        heartbeat.close()
        assert set(counted) == {("alive/3", 1)}


class TestSlices:
    def test_a_batch_is_found_again_under_its_names(self):
        extras = {"a": np.arange(8), "b/c": np.ones((8, 2))}
        made = batch(0, obs={"x": np.zeros(8), "y": np.ones(8, np.uint8)}, extras=extras)

        again = batch_of(named_arrays(made))

        assert again.mask is None
        assert set(again.obs) == {"x", "y"}
        assert set(again.extras) == {"a", "b/c"}
        np.testing.assert_array_equal(again.reward, made.reward)

    def test_arrays_of_all_kinds_travel_as_bytes(self):
        arrays = {
            "none": np.zeros((0, 3), np.float32),
            "one": np.array(3, np.int64),
            "flags": np.array([True, False, True]),
            "odd": np.arange(7, dtype=np.uint8),
            "cut": np.arange(20, dtype=np.float64)[::2],
        }

        note, found = unpack(pack({"lr": 0.1, "steps": 7}, arrays))

        assert note == {"lr": 0.1, "steps": 7}
        assert sorted(found) == sorted(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype

    def test_objects_do_not_travel(self):
        layout = ArrayLayout.read({"x": [[1], "|O"]})

        with pytest.raises((TypeError, ValueError)):
            layout.views(np.zeros(64, np.uint8))

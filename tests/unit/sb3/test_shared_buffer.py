"""The buffer for Stable-Baselines3: SB3's own samples without a pool, the right ones with it."""
# ruff: noqa: NPY002 - SB3 draws with numpy's global generator

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from rookery import DistributedReplayBuffer, create_distributed_registry
from rookery.config.schema import Strategy
from rookery.errors import ConfigError, RegistryError
from sb3_steps import POINT, PUSH, Story, live, normalizer

PICTURE = spaces.Box(0, 255, (2, 4, 4), np.uint8)
SEVERAL = spaces.Dict({"point": POINT, "picture": PICTURE, "place": spaces.Discrete(5)})
KINDS = {
    "vector": (POINT, PUSH),
    "picture": (PICTURE, spaces.Discrete(3)),
    "discrete": (spaces.Discrete(7), spaces.Discrete(2)),
    "multi": (spaces.MultiDiscrete([3, 4]), PUSH),
    "binary": (spaces.MultiBinary(4), spaces.Discrete(2)),
    "wide": (spaces.Box(-1, 1, (2,), np.float64), spaces.Box(-1, 1, (2, 2), np.float64)),
    "dict": (SEVERAL, PUSH),
}


@pytest.fixture
def registry(tmp_path):
    registry = create_distributed_registry(10_000, path=tmp_path / "pool")
    yield registry
    if registry.available:
        registry.stop()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("rookery.sharing.registry.PATIENCE_S", 0.0)


def stock(space, action, n_envs, n_steps, **settings):
    if isinstance(space, spaces.Dict):
        return DictReplayBuffer(20 * n_envs, space, action, "cpu", n_envs=n_envs, **settings)
    if n_steps > 1:
        returns = {"n_steps": n_steps, "gamma": 0.9}
        return NStepReplayBuffer(
            20 * n_envs, space, action, "cpu", n_envs=n_envs, **returns, **settings
        )
    return ReplayBuffer(20 * n_envs, space, action, "cpu", n_envs=n_envs, **settings)


def ours(space=POINT, action=PUSH, n_envs=1, n_steps=1, rows=20, **settings):
    settings = {"gamma": 0.9, "seed": 5} | settings
    return DistributedReplayBuffer(
        rows * n_envs, space, action, "cpu", n_envs=n_envs, n_steps=n_steps, **settings
    )


def member(registry, run_id, **settings):
    buffer_id = registry.register_buffer(run_id=run_id, algorithm="SAC")
    return ours(registry=registry, buffer_id=buffer_id, **settings)


def flattened(samples):
    for field in samples:
        yield from field.values() if isinstance(field, dict) else [field]


def assert_same(mine, theirs):
    assert type(mine) is type(theirs)
    for a, b in zip(flattened(mine), flattened(theirs), strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b))


def assert_draws_the_same(mine, theirs, env=None, batch=64):
    for seed in range(3):
        np.random.seed(seed)
        a = mine.sample(batch, env=env)
        state = np.random.get_state()[2]
        np.random.seed(seed)
        assert_same(a, theirs.sample(batch, env=env))
        assert np.random.get_state()[2] == state


# --- without loans: SB3's samples


ALONE = {  # ways to have own rows only
    "no pool": None,
    "local_only": {"sample_strategy": "local_only"},
    "ratio 0": {"cross_sample_ratio": 0.0},
}
RETURNS = [(kind, n) for kind in KINDS for n in (1, 3) if (kind, n) != ("dict", 3)]  # SB3 has not


@pytest.mark.parametrize("alone", ALONE)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(("kind", "n_steps"), RETURNS)
def test_own_rows_are_the_samples_of_sb3(kind, n_envs, n_steps, alone, registry):
    space, action = KINDS[kind]
    settings = {"space": space, "action": action, "n_envs": n_envs, "n_steps": n_steps}
    how = ALONE[alone]
    mine = ours(**settings) if how is None else member(registry, "a", **settings, **how)
    theirs = stock(space, action, n_envs, n_steps)

    for steps in (12, 30):  # not full, and past the end
        for step in live(space, action, steps, n_envs):
            mine.add(*copy.deepcopy(step))
            theirs.add(*copy.deepcopy(step))
        assert (mine.size(), mine.pos, mine.full) == (theirs.size(), theirs.pos, theirs.full)
        assert_draws_the_same(mine, theirs)


PAIR = spaces.Dict({"a": POINT, "b": POINT})


@pytest.mark.parametrize(("space", "n_steps"), [(POINT, 1), (POINT, 3), (PAIR, 1)])
def test_own_rows_are_normalised_as_by_sb3(space, n_steps):
    mine, theirs = ours(space, n_steps=n_steps), stock(space, PUSH, 1, n_steps)
    for step in live(space, PUSH, 30, 1):
        mine.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))

    assert_draws_the_same(mine, theirs, normalizer(space))


@pytest.mark.parametrize("spared", [False, True])
def test_time_limits_and_memory_are_handled_as_by_sb3(spared):
    settings = {"handle_timeout_termination": False, "optimize_memory_usage": spared}
    mine, theirs = ours(**settings), stock(POINT, PUSH, 1, 1, **settings)
    for step in live(POINT, PUSH, 30, 1):
        mine.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))

    assert_draws_the_same(mine, theirs)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_rows_that_one_buffer_holds_can_be_put_into_another_as_with_sb3(n_steps):
    held = ours(n_steps=n_steps)
    Story(18).tell(held)
    infos = [[{"TimeLimit.truncated": flags}] for flags in held.timeouts]  # arrays [n_envs]
    steps = (held.observations, held.next_observations, held.actions, held.rewards, held.dones)

    mine, theirs = ours(n_steps=n_steps), stock(POINT, PUSH, 1, n_steps)
    for buffer in (mine, theirs):
        buffer.extend(*(copy.deepcopy(column) for column in steps), infos)

    assert mine.timeouts.any()
    assert np.array_equal(mine.timeouts, held.timeouts)
    assert_draws_the_same(mine, theirs)


@pytest.mark.parametrize("flag", [True, np.bool_(True), np.array(True), np.array([1.0])])
def test_a_time_limit_is_told_by_every_kind_of_value_that_sb3_accepts(flag, registry):
    mine, theirs = member(registry, "a"), stock(POINT, PUSH, 1, 1)
    step = next(live(POINT, PUSH, 1, 1))[:5]

    for buffer in (mine, theirs):
        buffer.add(*copy.deepcopy(step), [{"TimeLimit.truncated": flag}])

    assert mine.timeouts[0].tolist() == theirs.timeouts[0].tolist() == [1.0]


def test_sb3_refuses_the_same_combination():
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        ours(optimize_memory_usage=True)


def test_dict_observations_have_n_step_returns_too():
    story = Story(30, envs=3)
    mine = ours(PAIR, n_envs=3, n_steps=3)
    theirs = stock(POINT, PUSH, 3, 3)
    story.tell(mine, keys=("a", "b"))
    story.tell(theirs)

    np.random.seed(1)
    a = mine.sample(64)
    np.random.seed(1)
    b = theirs.sample(64)
    for key in ("a", "b"):
        assert torch.equal(a.observations[key], b.observations)
        assert torch.equal(a.next_observations[key], b.next_observations)
    assert torch.equal(a.actions, b.actions)
    assert torch.equal(a.dones, b.dones)
    assert torch.allclose(a.rewards, b.rewards)
    assert torch.allclose(a.discounts, b.discounts)


def test_an_empty_buffer_cannot_be_sampled():
    with pytest.raises(ValueError, match=r"high <= 0|low >= high"):
        ours().sample(4)


# --- loans


def shared(registry, n_envs=1, n_steps=1, space=POINT, keys=(), **settings):
    """Our buffer and a peer's, each told a story of its own; returns the buffer and both."""
    own, other = Story(30, n_envs, seed=1), Story(25, 2, seed=2, first=1000)
    buffer = member(registry, "own", n_envs=n_envs, n_steps=n_steps, space=space, **settings)
    peer = member(registry, "peer", n_envs=2, space=space, cross_sample_ratio=0.0)
    own.tell(buffer, keys=keys)
    other.tell(peer, keys=keys)
    return buffer, own, other, peer


def assert_told(samples, own, other, n_steps, *, scale=1.0, clip=np.inf, gamma=0.9):
    """Every row is one of the two stories, with its n-step return; returns which are the peer's."""
    number = samples.observations[:, 0].round().int().numpy()
    foreign = number >= other.first
    for i, (value, lent) in enumerate(zip(number, foreign, strict=True)):
        story = other if lent else own
        row = int(value) - story.first
        window = story.window(row, n_steps, gamma, scale, clip)
        assert np.array_equal(samples.observations[i], story.obs(row))
        assert np.array_equal(samples.next_observations[i], story.next_obs(window.last))
        assert np.array_equal(samples.actions[i], story.action(row))
        assert samples.rewards[i].item() == pytest.approx(window.reward, abs=1e-5)
        assert samples.dones[i].item() == window.done
        if n_steps > 1:
            discount = samples.discounts[i].item()
            assert np.isfinite(discount)
            assert window.done or discount == pytest.approx(window.discount)
    return foreign


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_shared_batch_holds_rows_as_they_happened(registry, n_envs, n_steps):
    buffer, own, other, _ = shared(registry, n_envs, n_steps, cross_sample_ratio=0.5)

    for _ in range(5):
        samples = buffer.sample(64)
        foreign = assert_told(samples, own, other, n_steps)
        assert foreign.sum() == 32
        assert samples.rewards.shape == samples.dones.shape == (64, 1)
        assert (samples.discounts is None) == (n_steps == 1)
        kinds = [tensor.dtype for tensor in samples if tensor is not None]
        assert set(kinds) == {torch.float32}


@pytest.mark.parametrize("n_steps", [1, 3])
def test_loans_of_dict_observations_keep_their_keys(registry, n_steps):
    space, keys = PAIR, ("a", "b")
    settings = {"cross_sample_ratio": 0.5, "keys": keys}
    buffer, own, other, _ = shared(registry, 2, n_steps, space, **settings)

    samples = buffer.sample(64)
    assert set(samples.observations) == set(samples.next_observations) == set(keys)
    for key in keys:
        flat = samples._replace(
            observations=samples.observations[key],
            next_observations=samples.next_observations[key],
        )
        assert assert_told(flat, own, other, n_steps).sum() == 32


@pytest.mark.parametrize("n_steps", [1, 3])
def test_loans_are_normalised_like_own_rows(registry, n_steps):
    buffer, own, other, _ = shared(registry, 1, n_steps, cross_sample_ratio=0.5)
    env = normalizer(POINT)
    env.clip_obs = 1e6

    samples = buffer.sample(64, env=env)
    raw = samples._replace(
        observations=torch.as_tensor(env.unnormalize_obs(samples.observations.numpy())).round(),
        next_observations=torch.as_tensor(
            (env.unnormalize_obs(samples.next_observations.numpy()) * 2).round() / 2
        ),
    )
    scale = 1 / np.sqrt(1.7 + env.epsilon)
    assert assert_told(raw, own, other, n_steps, scale=scale, clip=0.8).sum() == 32
    assert samples.observations.dtype == torch.float32


def test_without_reward_normalisation_rewards_stay_raw(registry):
    buffer, own, other, _ = shared(registry, cross_sample_ratio=0.5)
    env = normalizer(POINT)
    env.norm_obs = env.norm_reward = False

    assert_told(buffer.sample(64, env=env), own, other, 1)


@pytest.mark.parametrize("kind", ["picture", "discrete", "dict"])
def test_loans_have_the_types_and_shapes_of_own_rows(registry, kind):
    space, action = KINDS[kind]
    settings = {"space": space, "action": action, "cross_sample_ratio": 0.5}
    buffer, peer = (member(registry, name, **settings) for name in ("own", "peer"))
    theirs = stock(space, action, 1, 1)
    for step in live(space, action, 15, 1):
        for each in (buffer, peer, theirs):
            each.add(*copy.deepcopy(step))

    mine = buffer.sample(33)
    assert buffer.get_stats()["distributed_samples"] in (16, 17)
    for a, b in zip(flattened(mine), flattened(theirs.sample(33)), strict=True):
        assert (a is None and b is None) or (a.dtype, a.shape) == (b.dtype, b.shape)


def test_the_share_is_kept_exactly_over_time(registry):
    buffer, *_ = shared(registry, cross_sample_ratio=0.2)

    counts = [int((buffer.sample(33).observations[:, 0] >= 1000).sum()) for _ in range(300)]
    assert set(counts) == {6, 7}
    deviation = np.sqrt(300 * 0.6 * 0.4)  # of how often 6.6 is rounded up
    assert abs(sum(counts) - 300 * 6.6) < 5 * deviation


def test_everything_can_be_borrowed(registry):
    buffer, own, other, _peer = shared(registry, cross_sample_ratio=1.0)

    assert assert_told(buffer.sample(64), own, other, 1).all()
    assert member(registry, "empty", cross_sample_ratio=1.0).sample(8).rewards.shape == (8, 1)


def test_samples_share_no_memory(registry):
    buffer, own, other, _ = shared(registry, cross_sample_ratio=0.5)

    for tensor in buffer.sample(64)[:5]:
        tensor.fill_(-1.0)
    assert_told(buffer.sample(64), own, other, 1)


def test_statistics_count_rows_by_whose_they_are(registry):
    buffer, *_, peer = shared(registry, 3, cross_sample_ratio=0.25)
    for _ in range(10):
        buffer.sample(64)

    stats = buffer.get_stats()
    assert stats["local_samples"] == 480
    assert stats["distributed_samples"] == 160
    assert stats["total_samples"] == 640
    assert stats["distributed_ratio"] == 0.25
    assert stats["num_shared_buffers"] == 1
    assert stats["local_size"] == 60
    assert stats["by_peer"] == {peer.buffer_id: 160}
    assert set(ours().get_stats()) == set(stats)


def test_borrowing_follows_the_global_seed_and_does_not_advance_it(registry):
    shared(registry)
    draws = []
    for _ in range(2):
        np.random.seed(11)
        buffer = member(registry, f"x{len(draws)}", cross_sample_ratio=1.0, seed=None)
        np.testing.assert_equal(
            np.random.get_state()[1:3], np.random.RandomState(11).get_state()[1:3]
        )
        draws.append(buffer.sample(64).observations)
        buffer.close()

    assert torch.equal(*draws)


# --- the ring


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_arrays_are_the_ring(registry, n_envs):
    story = Story(30, n_envs)
    buffer = member(registry, "a", n_envs=n_envs)
    story.tell(buffer)

    ring = registry.open_ring(buffer.buffer_id)
    assert (ring.committed, ring.stride, ring.paired) == (30 * n_envs, n_envs, True)
    for row in range(10 * n_envs, 30 * n_envs):
        assert np.array_equal(ring.columns["obs"][row % ring.capacity], story.obs(row))
    buffer.rewards[buffer.pos - 1, 0] = 77.0
    assert ring.columns["reward"][29 * n_envs % ring.capacity] == 77.0
    ring.close()


def test_two_buffers_may_have_one_id_of_which_one_writes(registry, impatient):
    reader = member(registry, "a")
    writer = ours(registry=registry, buffer_id=reader.buffer_id)
    story = Story(5)
    story.tell(writer)

    with pytest.raises(RegistryError, match="one writer"):
        story.tell(reader)
    assert (writer.size(), reader.size()) == (5, 0)


def test_an_id_that_is_claimed_again_begins_empty(registry):
    reader, first = member(registry, "b", cross_sample_ratio=1.0), member(registry, "a")
    buffer_id = first.buffer_id
    Story(7, first=500).tell(first)
    assert reader.sample(4).observations[:, 0].min() >= 500
    del first

    second = ours(registry=registry, buffer_id=buffer_id)
    Story(2, first=900).tell(second)
    assert second.size() == 2
    assert reader.sample(4).observations[:, 0].min() >= 900


@pytest.mark.parametrize("steps", [7, 25])
def test_a_reset_buffer_has_no_rows_for_its_own_run_or_others(registry, steps):
    reader = member(registry, "b", cross_sample_ratio=1.0)
    buffer = member(registry, "a", n_envs=2, cross_sample_ratio=0.0)
    Story(3).tell(reader)
    Story(steps, 2, first=500).tell(buffer)
    buffer.reset()

    assert (buffer.size(), buffer.pos, buffer.full) == (0, 0, False)
    assert (reader.sample(16).observations[:, 0] < 500).all()
    Story(4, 2, first=900).tell(buffer)
    assert (buffer.sample(16).observations[:, 0] >= 900).all()
    numbers = np.concatenate([reader.sample(16).observations[:, 0] for _ in range(30)])
    assert not ((numbers >= 500) & (numbers < 900)).any()
    assert (numbers >= 900).any()


def test_a_step_that_does_not_fit_leaves_the_ring_whole(registry):
    buffer = member(registry, "a")
    Story(5).tell(buffer)
    with pytest.raises(ValueError, match="broadcast"):
        buffer.add(np.zeros((1, 4)), np.zeros((1, 4)), np.zeros((1, 2)), 0.0, False, [{}])
    Story(5, seed=2, first=5).tell(buffer)

    ring = registry.open_ring(buffer.buffer_id)
    assert ring.committed == ring.reserved == 10
    assert ring.columns["obs"][:10, 0].tolist() == list(range(10))
    ring.close()


def test_a_closed_buffer_is_a_local_one(registry):
    buffer, own, *_ = shared(registry)
    buffer.close()
    buffer.close()

    own.tell(buffer)
    assert buffer.sample(8).observations[:, 0].max() < 1000
    registry.deregister_buffer(buffer.buffer_id)


# --- refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_strategy": "selfish"}, "'selfish'.*self_heavy.*local_only"),
        ({"cross_sample_ratio": 1.5}, r"1\.5.*from 0 to 1"),
        ({"n_steps": 0}, "n_steps=0"),
        ({"gamma": 0.0}, r"gamma=0\.0"),
        ({"buffer_id": "x"}, "give both"),
        ({"n_steps": 3, "optimize_memory_usage": True}, "no next observation"),
    ],
)
def test_requests_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ours(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimize_memory_usage": True, "handle_timeout_termination": False},
            "no next observation",
        ),
        ({"action": spaces.MultiDiscrete([2, 2])}, "MultiDiscrete.*Box"),
        ({"action": spaces.Discrete(3, start=1)}, "starts at 0"),
        ({"rows": 10_001}, "max_buffer_size"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_reason(registry, settings, message):
    with pytest.raises(ConfigError, match=message):
        member(registry, "a", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": spaces.Box(-1.0, 1.0, (3,), np.float32)}, "observation space"),
        ({"space": spaces.Box(-100.0, 100.0, (4,), np.float32)}, "observation obs"),
        ({"action": spaces.Box(-1.0, 1.0, (2,), np.float32)}, "action high"),
        ({"action": spaces.Discrete(4)}, "action choices"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_with_the_difference(registry, settings, message):
    member(registry, "a")

    with pytest.raises(ConfigError, match=message):
        member(registry, "b", **settings)


def test_another_size_under_one_id_is_refused(registry):
    buffer = member(registry, "a")

    with pytest.raises(ConfigError, match="another"):
        ours(rows=30, registry=registry, buffer_id=buffer.buffer_id)


def test_an_unknown_id_is_refused(registry):
    with pytest.raises(RegistryError, match="register_buffer"):
        ours(registry=registry, buffer_id="nobody-123456")


def test_a_stopped_registry_is_refused_by_name(registry):
    buffer_id = registry.register_buffer(run_id="a", algorithm="SAC")
    registry.stop()

    with pytest.raises(RegistryError, match="DistributedReplayBuffer: the registry"):
        ours(registry=registry, buffer_id=buffer_id)


def test_a_pool_that_goes_away_leaves_local_sampling(registry):
    buffer, own, other, _ = shared(registry, cross_sample_ratio=0.5)
    registry.stop()
    buffer._borrower._refresh_at = -1.0  # as a second later

    with pytest.warns(UserWarning, match="continues with its own rows"):
        samples = buffer.sample(64)
    assert not assert_told(samples, own, other, 1).any()
    own.tell(buffer)
    assert buffer.get_stats()["short_samples"] == 32


# --- pickles


def again(buffer):
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("pool", [False, True])
def test_a_loaded_buffer_gives_the_same_samples(registry, pool):
    settings = {"n_envs": 2, "n_steps": 3}
    buffer = member(registry, "a", cross_sample_ratio=0.0, **settings) if pool else ours(**settings)
    Story(30, 2).tell(buffer)

    assert_draws_the_same(again(buffer), buffer)


def test_a_pickle_of_the_registry_is_its_path(registry):
    buffer = member(registry, "a")
    assert str(registry.path).encode() in pickle.dumps(buffer)
    assert len(pickle.dumps(registry)) < 200


def test_a_loaded_buffer_borrows_and_lends_again(registry):
    buffer, own, other, _peer = shared(registry, 2, cross_sample_ratio=0.5)
    saved = pickle.dumps(buffer)
    del buffer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = pickle.loads(saved)

    assert assert_told(loaded.sample(64), own, other, 1).sum() == 32
    Story(3, 2, first=700).tell(loaded)
    reader = member(registry, "reader", cross_sample_ratio=1.0)
    numbers = np.concatenate([reader.sample(64).observations[:, 0] for _ in range(10)])
    lent = np.unique(numbers[numbers < 1000])
    expected = {*range(26, 60), *range(700, 706)}  # the last 17 steps of before, and 3 new ones
    assert set(lent) == expected


def test_a_buffer_whose_id_is_being_written_stays_local(registry, impatient):
    buffer, own, other, _ = shared(registry)
    loaded = again(buffer)

    with pytest.warns(UserWarning, match="stays local.*one writer") as caught:
        own.tell(loaded)
    assert len(caught) == 1
    assert not assert_told(loaded.sample(64), own, other, 1).any()
    assert loaded.registry is None
    own.tell(buffer)


@pytest.mark.parametrize("gone", ["pool", "id"])
def test_a_buffer_whose_pool_is_gone_is_loaded_with_one_warning(registry, gone):
    buffer, own, other, _ = shared(registry)
    saved = pickle.dumps(buffer)
    registry.deregister_buffer(buffer.buffer_id)
    if gone == "pool":
        registry.stop()

    with pytest.warns(UserWarning, match="stays local") as caught:
        loaded = pickle.loads(saved)
    assert len(caught) == 1
    own.tell(loaded)
    assert not assert_told(loaded.sample(64), own, other, 1).any()
    assert again(loaded).size() == 20


@pytest.mark.parametrize("n_steps", [1, 3])
def test_the_newest_rows_of_a_peer_are_lent_too_with_shorter_returns_as_own_ones(registry, n_steps):
    buffer, own, other, _ = shared(registry, n_steps=n_steps, cross_sample_ratio=1.0)
    lent = set()
    for _ in range(40):
        samples = buffer.sample(50)
        assert_told(samples, own, other, n_steps)
        lent |= {int(number) - other.first for number in samples.observations[:, 0].round()}
    assert lent == set(range(10, 50))  # the peer's last 20 steps of two environments


@pytest.mark.parametrize(
    "given",
    [
        {"cross_sample_ratio": "0.2"},
        {"cross_sample_ratio": None},
        {"cross_sample_ratio": True},
        {"cross_sample_ratio": float("nan")},
        {"n_steps": "3"},
        {"n_steps": 2.5},
        {"gamma": "0.9"},
        {"gamma": None},
        {"sample_strategy": None},
        {"seed": "5"},
        {"seed": -1},
        {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        {"registry": "/dev/shm/pool", "buffer_id": "a-123456"},
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_by_its_name_and_with_what_to_do(given):
    with pytest.raises(ConfigError, match=rf"{next(iter(given))}.*; (give|choose|leave)"):
        ours(**given)


def test_numbers_of_numpy_are_numbers():
    ours(cross_sample_ratio=np.float32(0.5), n_steps=np.int64(3), gamma=np.float64(0.9))


def test_the_arguments_of_hindsight_replay_are_refused_with_the_class_that_has_them():
    with pytest.raises(ConfigError, match=r"n_sampled_goal.*HerReplayBuffer"):
        ours(n_sampled_goal=4)


def test_two_buffers_on_one_id_report_the_same_counts(registry):
    buffer, _, _, peer = shared(registry)
    view = ours(registry=registry, buffer_id=buffer.buffer_id)
    for _ in range(10):
        buffer.sample(20)

    stats = view.get_stats()

    assert stats == buffer.get_stats()
    assert (stats["local_samples"], stats["distributed_samples"]) == (160, 40)
    assert (stats["num_shared_buffers"], stats["local_size"]) == (1, 20)
    assert stats["by_peer"] == {peer.buffer_id: 40}


def test_what_two_buffers_on_one_id_sample_is_added_up(registry):
    buffer, *_ = shared(registry)
    view = ours(registry=registry, buffer_id=buffer.buffer_id, cross_sample_ratio=1.0)
    buffer.sample(20)
    view.sample(20)

    assert view.get_stats() == buffer.get_stats()
    assert view.get_stats()["total_samples"] == 40
    assert view.get_stats()["distributed_samples"] == 24


def test_the_rows_that_a_second_buffer_reports_are_those_that_can_be_sampled(registry):
    buffer, *_ = shared(registry)
    view = ours(registry=registry, buffer_id=buffer.buffer_id)
    buffer.reset()
    Story(5).tell(buffer)
    assert view.get_stats()["local_size"] == buffer.get_stats()["local_size"] == 5


def test_counts_of_another_id_are_apart(registry):
    buffer, _, _, peer = shared(registry)
    buffer.sample(20)
    assert peer.get_stats()["total_samples"] == 0


def test_a_registry_from_a_pickle_may_have_lost_its_id(registry):
    revived = again(registry)

    with pytest.warns(UserWarning, match="stays local.*not registered"):
        buffer = ours(registry=revived, buffer_id="nobody-123456")
    assert buffer.registry is None


def test_every_strategy_can_be_named(registry):
    for strategy in Strategy:
        assert member(registry, strategy, sample_strategy=str(strategy)).size() == 0

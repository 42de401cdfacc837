"""Rollouts: what was just played is learned from for some epochs, and then never again."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.actors.actor import Actor
from rookery.algorithms import build_algorithm, row_spec
from rookery.cluster.remote_replay import recall_of
from rookery.config.algorithms import A2cConfig, PpoConfig, RolloutConfig
from rookery.config.load import load
from rookery.config.schema import ActorConfig, Config, EnvConfig, ReplayConfig
from rookery.errors import ConfigError
from rookery.replay.replay import Inserted
from rookery.replay.ring import Ring, row_bytes, schema_of
from rookery.replay.rollouts import RolloutLimiter, Rollouts
from rookery.replay.saved_rows import RowBlock
from rookery.runtime import machine
from rookery.runtime.machine import Space
from rookery.training.build import build_parts
from rookery.training.resources import ResourceEstimate, estimate, refuse_memory
from rookery.training.steps import due
from rookery.types import ADVANTAGE, AHEAD, RETURN, Batch, EnvSpec, Extra, LearnResult
from sample_experience import IMAGE, VECTOR, Move, Step, Told, columns, play
from scripted_roles import AUTORESETS, RUNNING, TERMINATED, TRUNCATED, Life, Script, vector

EXTRAS = (Extra("log_prob"), Extra(AHEAD))
SPEC = replace(VECTOR, extras=EXTRAS)
PPO = PpoConfig(gamma=0.5, gae_lambda=0.5, epochs=2)


def rollouts(
    algo: RolloutConfig = PPO,
    *,
    spec: EnvSpec = SPEC,
    batch: int = 4,
    capacity: int = 64,
    **more: Any,
) -> Rollouts:
    return Rollouts(
        spec,
        ReplayConfig(capacity=capacity, batch_size=batch),
        algo,
        rng=np.random.default_rng(3),
        transports=[Ring.create(schema_of(spec), 64) for _ in range(2)],
        envs=2,
        **more,
    )


def steps(count: int, move: Move = Move.RUN) -> list[Step]:
    """Returns rows of two actors with two environments each."""
    return play((k % 2, k // 2 % 2, move) for k in range(count))


def put(replay: Rollouts, played: Sequence[Step], first: int | None = None) -> None:
    """Writes rows to their actors' rings; the last of each environment looks ahead."""
    first = replay.ring.committed if first is None else first
    for actor, transport in enumerate(replay.transports):
        own = [step for step in played if step.actor == actor]
        last = {step.env: at for at, step in enumerate(own)}
        ahead = [1.0 if last[step.env] == at else np.nan for at, step in enumerate(own)]
        transport.append(columns(replay.spec, own, first) | {AHEAD: np.array(ahead)})
        first += len(own)


def drawn(replay: Rollouts, batches: int) -> list[Batch]:
    return [replay.sample(replay.config.batch_size) for _ in range(batches)]


def close(*replays: Rollouts) -> None:
    for replay in replays:
        for ring in (*replay.transports, replay.ring):
            ring.close()


def alike(one: Iterable[Batch], other: Iterable[Batch]) -> None:
    for a, b in zip(one, other, strict=True):
        for name in ("obs", "action", "reward"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        for name in (ADVANTAGE, RETURN, "log_prob"):
            np.testing.assert_array_equal(a.extras[name], b.extras[name])


@pytest.fixture
def replay() -> Iterator[Rollouts]:
    made = rollouts()
    yield made
    close(made)


def test_every_row_is_drawn_once_in_an_epoch(replay):
    put(replay, steps(11))
    replay.insert()

    batches = drawn(replay, 6)

    assert [batch.rows.size for batch in batches] == [4, 4, 3] * 2
    first, second = (np.concatenate([b.rows for b in half]) for half in (batches[:3], batches[3:]))
    assert sorted(first) == sorted(second) == list(range(11))
    assert first.tolist() != second.tolist()
    assert replay.left == 0


@pytest.mark.parametrize(
    ("rows", "sizes"), [(3, [3]), (4, [4]), (5, [5]), (9, [5, 4]), (13, [5, 4, 4])]
)
def test_a_few_rows_too_many_make_no_batch_of_their_own(replay, rows, sizes):
    put(replay, steps(rows))
    replay.insert()

    assert [batch.rows.size for batch in drawn(replay, replay.left)] == sizes * 2


def test_a_used_up_rollout_is_never_drawn_again(replay):
    put(replay, steps(8))
    replay.insert()
    drawn(replay, replay.left)
    put(replay, steps(8))
    replay.insert()

    rows = np.concatenate([batch.rows for batch in drawn(replay, replay.left)])

    assert sorted(set(rows)) == list(range(8, 16))


def test_the_rest_of_a_rollout_can_be_left_out(replay):
    put(replay, steps(11))
    replay.insert()
    drawn(replay, 2)

    replay.skip_rest()

    assert replay.left == 0
    put(replay, steps(8))
    replay.insert()
    rows = np.concatenate([batch.rows for batch in drawn(replay, replay.left)])
    assert sorted(set(rows)) == list(range(11, 19))


def test_rows_that_come_before_it_is_used_up_belong_to_the_rollout(replay):
    """Actors' chunks may be drained one after another."""
    put(replay, steps(4))
    replay.insert()
    put(replay, play([(0, 0, Move.DIE), (0, 0, Move.RUN), (0, 1, Move.RUN)]))
    replay.insert()

    assert replay.left == 2 * 2
    rows = np.concatenate([batch.rows for batch in drawn(replay, 2)])
    assert sorted(rows) == list(range(6))


def test_a_whole_rollout_is_one_batch_where_the_algorithm_wants_it():
    replay = rollouts(A2cConfig(gamma=0.5), batch=4)
    put(replay, steps(10))
    replay.insert()

    assert replay.left == 1
    assert sorted(replay.sample(4).rows) == list(range(10))
    assert replay.left == 0
    close(replay)


def test_nothing_played_is_nothing_to_learn(replay):
    replay.insert()

    assert replay.left == 0
    assert not RolloutLimiter(replay).ready()


def test_a_rollout_is_the_same_however_it_was_drained():
    one, many = rollouts(), rollouts()
    played = steps(12)
    put(one, played)
    one.insert()
    for actor in (1, 0):  # whoever is ready first
        put(many, [step for step in played if step.actor == actor], first=6 * actor)
        many.insert()

    alike(drawn(one, 6), drawn(many, 6))
    close(one, many)


class Elsewhere:
    """A source of rows: of two shards, the second of which is new."""

    def __init__(self, parts: Sequence[dict[str, Any]]):
        self.parts = parts

    def insert(self) -> Inserted:
        count = sum(len(part["end"]) for part in self.parts)
        return Inserted(-1, count, count)

    def fetch(self) -> list[RowBlock]:
        return [RowBlock(7, part) for part in self.parts]


def test_rows_brought_from_elsewhere_make_the_same_rollout():
    here = rollouts()
    put(here, steps(12))
    here.insert()
    shards = [here.ring.columns["actor"][:12] == actor for actor in (1, 0)]
    parts = [{n: c[:12][who] for n, c in here.ring.columns.items()} for who in shards]
    brought = rollouts()
    brought.source = Elsewhere(parts)

    drained = brought.insert()

    assert (drained.first, drained.count, drained.steps) == (0, 12, 12)
    alike(drawn(here, 6), drawn(brought, 6))
    close(here, brought)


@pytest.mark.parametrize("before", [0, 1, 3, 4, 6])
def test_a_run_goes_on_in_the_middle_of_an_epoch(before):
    whole, torn = rollouts(), rollouts()
    put(whole, steps(8))
    whole.insert()
    drawn(whole, whole.left)
    put(whole, steps(11))
    whole.insert()
    drawn(whole, before)

    numbers, arrays = whole.state()
    torn.restore(numbers, arrays, [(0, whole.rows_between(0, 19))])

    assert torn.left == whole.left == 6 - before
    alike(drawn(whole, whole.left), drawn(torn, torn.left))
    for replay in (whole, torn):
        put(replay, steps(6))
        replay.insert()
    alike(drawn(whole, 4), drawn(torn, 4))
    close(whole, torn)


def test_rewards_are_divided_by_the_scale_before_values_are_compared_with_them(replay):
    put(replay, steps(4))
    plain, scaled = rollouts(), replay
    scaled.scale = lambda rewards: rewards / np.float32(4.0)
    put(plain, steps(4))
    for each in (plain, scaled):
        each.insert()

    one, other = plain._estimated(), scaled._estimated()

    reward = plain.ring.columns["reward"][:4][one.rows]
    np.testing.assert_allclose(other.advantage - one.advantage, reward / 4 - reward)
    close(plain)


def test_frames_of_the_rollout_before_are_there_however_short_a_rollout_is():
    """Each rollout has one step of each environment, and a policy sees three frames."""
    spec, played = replace(IMAGE, extras=EXTRAS), steps(24)
    actor = ActorConfig(num=2, envs=2, chunk=2)
    config = load(
        "ppo-cartpole",
        changes={
            "run.mode": "sync",
            "actor.num": actor.num,
            "actor.envs": actor.envs,
            "actor.chunk": actor.chunk,
            "env.frame_stack": spec.frame_stack,
        },
    )
    replay = rollouts(replace(PPO, epochs=1), spec=spec, capacity=config.capacity)
    ordered: list[Step] = []
    for at in range(0, len(played), 4):
        put(replay, played[at : at + 4])
        ordered += sorted(played[at : at + 4], key=lambda step: step.actor)
        replay.insert()
        plain = Told(ordered, len(ordered))

        batch = replay.sample(4)

        for row, seen in zip(batch.rows.tolist(), batch.obs, strict=True):
            np.testing.assert_array_equal(seen, plain.seen(spec, row))
    close(replay)


def test_more_rows_than_fit_are_learned_from_as_far_as_they_are_there():
    replay = rollouts(capacity=8)
    put(replay, steps(12))
    replay.insert()

    rows = np.concatenate([batch.rows for batch in drawn(replay, 2)])

    assert sorted(rows) == list(range(4, 12))
    close(replay)


def test_the_limiter_allows_the_epochs_and_then_the_next_rollout(replay):
    limiter = RolloutLimiter(replay)
    assert limiter.may_insert()
    assert limiter.room == 64
    put(replay, steps(8))
    limiter.insert(replay.insert().steps)
    assert limiter.ready()
    assert not limiter.may_insert()
    assert limiter.room == 0

    while limiter.ready():
        limiter.sample(replay.sample(4).rows.size)

    assert limiter.ratio == 2.0  # epochs
    assert limiter.may_insert()
    again = RolloutLimiter(replay)
    again.restore(limiter.state())
    assert again.ratio == 2.0


LIVES = (
    Life((1.0, 2.0, 4.0), TERMINATED),
    Life((-0.5,), TRUNCATED),
    Life((0.25,) * 7, TRUNCATED),
)
LONG = (Life((0.5,) * 5, TERMINATED), Life((8.0, -8.0), TRUNCATED), Life((1.0,) * 30, TERMINATED))


def config(**changes: Any) -> Config:
    return load("ppo-cartpole", changes={"net.hidden": [8], **changes})


@pytest.mark.parametrize("mode", AUTORESETS)
@pytest.mark.parametrize("chunk", [2, 5, 14, 33])
def test_advantages_of_what_actors_play_equal_a_double_loop_over_each_environment(mode, chunk):
    """Terminations, truncations, chunks that end in mid-episode, lanes of unequal length."""
    scripts = [Script(0, LIVES), Script(1, LONG)]
    envs = vector(scripts, mode)
    algorithm = build_algorithm(config(), envs.spec)
    spec = row_spec(envs.spec, algorithm)
    transport = Ring.create(schema_of(spec), 256)
    transport.columns["taken"][:] = np.nan
    actor = Actor(
        envs,
        algorithm,
        ActorConfig(chunk=chunk, envs=2),
        EnvConfig(),
        seed=5,
        ring=transport,
        values=True,
    )
    replay = Rollouts(
        spec,
        ReplayConfig(capacity=256, batch_size=1),
        PpoConfig(gamma=0.9, gae_lambda=0.8, epochs=1),
        rng=np.random.default_rng(0),
        transports=[transport],
        envs=2,
    )

    def value(obs: Sequence[float]) -> float:
        seen = np.array([obs], dtype=np.float32)
        acted = algorithm.act(seen, np.random.default_rng(0), noise=False, values=True)
        return acted.best.item()  # type: ignore[union-attr, no-any-return]

    for _ in range(3):
        before = [len(script.rows) for script in scripts]
        actor.collect(chunk, 0.0)
        replay.insert()
        wanted = [
            one
            for script, begin in zip(scripts, before, strict=True)
            for one in by_hand(script, begin, value)
        ]

        made = replay._estimated()

        np.testing.assert_allclose(made.advantage, wanted, rtol=1e-4, atol=1e-4)
        values = replay.ring.columns["best"][made.rows % 256]
        np.testing.assert_allclose(made.returns, made.advantage + values)
        drawn(replay, replay.left)
    actor.close()
    replay.ring.close()


def by_hand(script: Script, begin: int, value: Any) -> list[float]:
    """Returns the advantages of the steps from `begin` on that the script has noted down."""
    rows, found = script.rows, []
    for i in range(begin, len(rows)):
        if rows[i].end is not RUNNING:
            continue
        total, factor = 0.0, 1.0
        for j in range(i, len(rows)):
            following = rows[j + 1] if j + 1 < len(rows) else None
            died = following is not None and following.end is TERMINATED
            next_obs = script._obs().tolist() if following is None else following.obs
            outlook = 0.0 if died else value(next_obs)
            total += factor * (rows[j].reward + 0.9 * outlook - value(rows[j].obs))
            factor *= 0.9 * 0.8
            if following is None or following.end is not RUNNING:
                break
        found.append(total)
    return found


class TestInARun:
    def test_capacity_is_two_rollouts_and_more_where_their_frames_reach_further_back(self):
        few = {"actor.envs": 4, "actor.chunk": 8}

        assert config(**few).capacity == 2 * (8 + 2 * 4)
        assert config(**few, **{"env.frame_stack": 3}).capacity == 2 * (8 + 2 * 4)
        assert config(**few, **{"env.frame_stack": 8}).capacity == (1 + 4) * (8 + 2 * 4)
        crowd = {"run.mode": "sync", "actor.num": 3}
        assert config(**few, **crowd).capacity == 3 * 2 * (8 + 2 * 4)

    def test_memory_is_estimated_for_rollouts_and_not_for_replay(self):
        with closing(build_parts(config(**{"env.check": False}))) as parts:
            need = estimate(parts.config, parts.spec, parts.learner.algorithm)
            rows = parts.config.capacity * row_bytes(schema_of(parts.spec))

            assert parts.replay.ring.capacity == parts.config.capacity
            assert rows <= need.replay <= 1.5 * rows

    def test_too_little_memory_names_the_setting_that_decides(self, monkeypatch):
        monkeypatch.setattr(machine, "memory", lambda: Space(free=0, total=1))
        need = ResourceEstimate(replay=1, weights=1, processes=1, checkpoints=1)

        with pytest.raises(ConfigError, match=r"lower actor\.chunk \(256\)$"):
            refuse_memory(need, config())

    def test_weights_are_published_once_for_each_rollout_even_if_its_last_step_was_skipped(self):
        limiter = SimpleNamespace(ready=lambda: False)
        parts: Any = SimpleNamespace(config=config(), limiter=limiter)

        assert due(parts, LearnResult(None, {}))
        limiter.ready = lambda: True
        assert not due(parts, LearnResult(None, {"loss": 1.0}))

    def test_a_lost_host_is_given_no_shard_of_a_checkpoint(self):
        """What is saved are the rollouts of the learner."""
        saver: Any = SimpleNamespace()

        assert recall_of(config(), saver) is None

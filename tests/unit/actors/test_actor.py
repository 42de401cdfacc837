"""The actor: what it writes is what was played, however episodes end and begin."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from misbehaving_envs import Maturing, Wander
from rookery import seeding
from rookery.actors.actor import CHUNKS, FEWEST, RING_BYTES, Actor, transport
from rookery.actors.actor import LONG as LONG_RING
from rookery.algorithms import Acted
from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import (
    ActorConfig,
    Draw,
    EnvConfig,
    FirstPriority,
    NetConfig,
    ReplayConfig,
)
from rookery.envs.make import make
from rookery.envs.toy import basic
from rookery.errors import ProtocolError
from rookery.event import Episode
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import arrays_of
from rookery.replay.buffer import LocalReplay
from rookery.replay.fold import observations
from rookery.replay.sampler import FLOOR
from rookery.seeding import Role
from rookery.types import Batch
from scripted_roles import (
    AUTORESETS,
    RUNNING,
    TERMINATED,
    TRUNCATED,
    Life,
    Script,
    Told,
    actor,
    flat_spec,
    vector,
    written,
)
from small_replays import shut

SHORT = (
    Life((1.0, 2.0, 4.0), TERMINATED, {"is_success": True}),
    Life((-0.5,), TRUNCATED),
    Life((0.25, 0.25), TERMINATED),
)
LONG = (Life((0.5,) * 5, TRUNCATED), Life((8.0, -8.0), TERMINATED, {"coins": 3}))


def scripts() -> list[Script]:
    """Three environments whose episodes end at different times, and sometimes together."""
    return [Script(0, SHORT), Script(1, LONG), Script(2, SHORT[::-1])]


@pytest.fixture(params=AUTORESETS, ids=[mode.name for mode in AUTORESETS])
def mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def open_actors() -> Iterator[list[Actor]]:
    """Actors put here are closed afterwards."""
    actors: list[Actor] = []
    yield actors
    for one in actors:
        one.close()


class TestRows:
    def test_each_step_played_is_one_row_and_each_final_observation_another(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        played = scripts()
        open_actors.append(player := actor(vector(played, mode)))
        steps = player.collect(60, 0.0).env_steps

        rows = written(player.ring)

        assert sum(row["end"] == RUNNING for row in rows) == steps
        for script in played:
            own = [row for row in rows if row["env"] == script.number]
            assert [
                (tuple(r["obs"]), r["reward"], r["end"], r["episode"], r["t"]) for r in own
            ] == [(r.obs, r.reward, r.end, r.episode, r.t) for r in script.rows]
            assert [r["action"] for r in own if r["end"] == RUNNING] == [
                r.action for r in script.rows if r.action is not None
            ]

    def test_a_step_that_only_resets_is_neither_a_row_nor_an_env_step(
        self, open_actors: list[Actor]
    ) -> None:
        open_actors.append(
            player := actor(vector([Script(0, [Life((1.0,), TERMINATED)])], AUTORESETS[1]))
        )

        assert player.collect(3, 0.0).env_steps == 3  # five calls of step
        assert [row["end"] for row in written(player.ring)] == [RUNNING, TERMINATED] * 3

    def test_collect_plays_at_least_what_it_was_asked_for_and_goes_on_where_it_was(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        at_once, in_parts = (actor(vector(scripts(), mode)) for _ in range(2))
        open_actors += [at_once, in_parts]
        whole = at_once.collect(40, 0.0)
        parts = [in_parts.collect(1, 0.0)]
        while sum(part.env_steps for part in parts) < whole.env_steps:
            parts.append(in_parts.collect(1, 0.0))

        assert 40 <= whole.env_steps < 43
        assert all(1 <= part.env_steps <= 3 for part in parts)
        assert written(in_parts.ring) == written(at_once.ring)
        assert sum((part.ended for part in parts), ()) == whole.ended

    def test_rows_name_the_actor_its_incarnation_and_the_version_that_played(
        self, open_actors: list[Actor]
    ) -> None:
        envs = vector(scripts(), AUTORESETS[0])
        open_actors.append(
            player := Actor(
                envs, Told(), ActorConfig(), EnvConfig(), seed=0, index=3, incarnation=2
            )
        )
        weight_store = WeightStore(arrays_of(player.algorithm.acting))
        player.collect(3, 0.0)
        for _ in range(5):
            weight_store.publish(arrays_of(player.algorithm.acting))
        player.pull(weight_store)
        player.collect(3, 0.0)
        weight_store.close()

        rows = written(player.ring)

        assert {(row["actor"], row["incarnation"]) for row in rows} == {(3, 2)}
        assert [row["version"] for row in rows if row["end"] == RUNNING] == [0] * 3 + [5] * 3

    def test_a_full_transport_ring_is_refused_and_keeps_its_rows(
        self, open_actors: list[Actor]
    ) -> None:
        endless = [Script(i, [Life((1.0,) * 1000, TERMINATED)]) for i in range(2)]
        open_actors.append(player := actor(vector(endless, AUTORESETS[0]), chunk=4))
        capacity = player.ring.capacity

        with pytest.raises(ProtocolError, match=f"ring of {capacity} rows is full; drain it"):
            player.collect(capacity + 2, 0.0)

        assert [row["t"] for row in written(player.ring)] == sorted([*range(capacity // 2)] * 2)

    def test_rows_of_a_dict_observation_have_a_column_for_each_leaf(
        self, open_actors: list[Actor]
    ) -> None:
        told = Told()
        told.seen = seen = []
        told.act = lambda obs, rng, **_: (  # type: ignore[method-assign]
            seen.append({k: v.copy() for k, v in obs.items()}) or Acted(np.zeros(2, np.int64))
        )
        open_actors.append(player := actor(make(EnvConfig(), 2, factory=basic.Mixed), told))
        player.collect(6, 0.0)

        for name in ("vector", "image", "choice"):
            column = player.ring.columns[f"obs.{name}"][:6]
            np.testing.assert_array_equal(column, np.concatenate([obs[name] for obs in seen]))

    def test_several_choices_at_once_are_one_row_and_an_end_has_none(
        self, open_actors: list[Actor]
    ) -> None:
        copied = Told(lambda obs: np.stack([obs[:, :3].argmax(1), obs[:, 3:].argmax(1)], axis=1))
        open_actors.append(player := actor(make(EnvConfig(), 2, factory=basic.Dials), copied))
        played = player.collect(20, 0.0)

        rows = written(player.ring)
        steps = [row for row in rows if row["end"] == RUNNING]
        ends = [row for row in rows if row["end"] == TERMINATED]
        assert [episode.score for episode in played.ended] == [basic.Dials().optimal_return] * 2
        assert (player.ring.columns["action"].dtype, len(steps)) == (np.int64, 20)
        assert [row["action"] for row in steps] == [
            [int(np.argmax(row["obs"][:3])), int(np.argmax(row["obs"][3:]))] for row in steps
        ]
        assert [row["action"] for row in ends] == [[0, 0]] * 2


class TestScores:
    def test_finished_episodes_have_their_score_length_and_info(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        envs = vector([Script(0, SHORT[:1] + LONG[1:])], mode)
        open_actors.append(
            player := Actor(envs, Told(), ActorConfig(), EnvConfig(), seed=0, info_keys=("coins",))
        )

        assert (
            player.collect(10, 0.0).ended
            == (
                Episode(7.0, 3, {"is_success": 1.0}),
                Episode(0.0, 2, {"coins": 3.0}),
            )
            * 2
        )

    def test_scale_and_clip_are_in_the_rows_and_not_in_the_scores(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        lives = [Life((1.0, 3.0, -8.0), TERMINATED)]
        open_actors.append(
            player := actor(vector([Script(0, lives)], mode), reward_scale=0.5, reward_clip=1.0)
        )

        ended = player.collect(3, 0.0).ended

        assert [row["reward"] for row in written(player.ring)] == [0.5, 1.0, -1.0, 0.0]
        assert [episode.score for episode in ended] == [-4.0]


class Noting(Dqn):
    """Remembers what it was shown, by (environment, episode, step)."""

    def attach(self, player: Actor) -> None:
        self.player, self.shown = player, {}

    def act(self, obs: Any, rng: np.random.Generator, **how: Any) -> Acted:
        for env, seen in enumerate(obs):
            key = (env, int(self.player.episode[env]), int(self.player.t[env]))
            self.shown[key] = seen.copy()
        return super().act(obs, rng, **how)


def pictures(mode: AutoresetMode, depth: int = 3, envs: int = 2) -> Any:
    return vector([basic.Pictures(5) for _ in range(envs)], mode, depth)


def test_stacks_acted_on_are_the_stacks_drawn_later(mode: AutoresetMode) -> None:
    envs = pictures(mode)
    algorithm = Noting(DqnConfig(), NetConfig(hidden=(4,)), EnvConfig(), envs.spec)
    player = actor(envs, algorithm, chunk=100)
    algorithm.attach(player)
    replay = ReplayConfig(capacity=500, learning_starts=1, batch_size=1)
    rng = np.random.default_rng(0)
    pool = LocalReplay(envs.spec, replay, DqnConfig(), rng=rng, transports=[player.ring], envs=2)
    player.collect(100, 0.5)
    player.cut()
    player.collect(100, 0.5)
    pool.insert()

    batch = pool.sample(400)
    slots = batch.rows % 500
    where = zip(
        *(pool.ring.columns[k][slots].tolist() for k in ("env", "episode", "t")), strict=True
    )

    compared = 0
    for i, (env, episode, t) in enumerate(where):
        np.testing.assert_array_equal(batch.obs[i], algorithm.shown[env, episode, t])
        if (env, episode, t + 1) in algorithm.shown and batch.discount[i] > 0:
            np.testing.assert_array_equal(batch.next_obs[i], algorithm.shown[env, episode, t + 1])
            compared += 1
    assert compared > 200
    envs.close()
    shut(pool)


def pool_of(player: Actor, **algo: Any) -> LocalReplay:
    """Returns a replay of this actor that ranks by its values, none of it forgotten."""
    return LocalReplay(
        player.envs.spec,
        ReplayConfig(
            capacity=500,
            learning_starts=1,
            batch_size=1,
            sampling=Draw.PRIORITIZED,
            alpha=1.0,
            initial_priority=FirstPriority.ACTOR,
        ),
        DqnConfig(**algo),
        rng=np.random.default_rng(0),
        transports=[player.ring],
        envs=player.envs.num,
    )


class TestValues:
    @pytest.mark.parametrize("depth", [1, 3])
    def test_they_are_the_networks_of_what_it_saw_final_observations_included(
        self, mode: AutoresetMode, depth: int
    ) -> None:
        envs = vector(scripts(), mode, depth)
        player = actor(envs, algorithm := trained(3, envs), values=True, chunk=100)
        player.collect(50, 0.5)
        player.cut()  # in mid-episode
        player.collect(50, 0.5)
        pool = pool_of(player)
        pool.insert()
        rows, columns = np.arange(pool.ring.committed), pool.ring.columns

        with torch.no_grad():
            q = algorithm.acting(
                torch.from_numpy(observations(pool.ring, envs.spec, rows, 0))
            ).numpy()
        end = columns["end"][rows]
        running, died = end == RUNNING, end == TERMINATED
        action = columns["action"][rows]
        taken, best = columns["taken"][rows], columns["best"][rows]
        np.testing.assert_allclose(taken[running], q[rows, action][running], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(best[~died], q.max(1)[~died], rtol=1e-4, atol=1e-5)
        assert np.isnan(taken[~running]).all()
        assert (best[died] == 0).all()
        assert np.bincount(end).min() >= 10  # all three kinds
        envs.close()
        shut(pool)

    @pytest.mark.parametrize("n_step", [1, 2, 3])
    @pytest.mark.parametrize("double", [False, True])
    def test_first_priorities_are_the_errors_a_learner_with_these_weights_finds(
        self, mode: AutoresetMode, n_step: int, double: bool
    ) -> None:
        envs = vector(scripts(), mode)
        algorithm = trained(3, envs, n_step=n_step, double=double, dueling=True)
        player = actor(envs, algorithm, values=True, chunk=100)
        player.collect(100, 0.5)
        player.cut()
        pool = pool_of(player, n_step=n_step, double=double)
        pool.insert()

        first = pool.sampler.leaves.copy()  # type: ignore[attr-defined]
        batch = pool.sample(400)
        tensors = {
            k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
            for k, v in batch._asdict().items()
        }
        (loss,) = algorithm.losses(Batch(**tensors), step=1, rng=torch.Generator())

        assert loss.td_error is not None
        wanted = loss.td_error.abs().numpy() + FLOOR
        np.testing.assert_allclose(first[batch.rows % 500], wanted, rtol=1e-4, atol=1e-5)
        assert len(set(batch.rows.tolist())) > 80
        envs.close()
        shut(pool)

    def test_writing_them_changes_nothing_else(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        rows = []
        for values in (False, True):
            envs = vector(scripts(), mode)
            open_actors.append(player := actor(envs, trained(3, envs), values=values))
            player.collect(60, 0.5)
            player.cut()
            rows.append(written(player.ring))

        plain, valued = rows
        assert {(row["taken"], row["best"]) for row in plain} == {(None, 0.0)}
        assert [r | {"taken": None, "best": 0.0} for r in valued] == plain

    def test_an_algorithm_that_has_none_leaves_rows_without(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        open_actors.append(player := actor(vector(scripts(), mode), Told(), values=True))
        player.collect(60, 0.5)
        player.cut()

        assert {row["taken"] for row in written(player.ring)} == {None}


class TestCutting:
    def test_a_cut_truncates_open_episodes_with_the_observation_they_stopped_at(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        played = [Script(0, LONG), Script(1, [Life((1.0, 1.0), TERMINATED)])]
        open_actors.append(player := actor(vector(played, mode)))
        player.collect(4, 0.0)  # two steps each: the second has just ended by itself
        before = len(written(player.ring))

        player.cut()
        after = written(player.ring)[before:]

        assert [(r["env"], r["obs"], r["end"], r["episode"], r["t"]) for r in after] == [
            (0, [0.0, 0.0, 2.0], TRUNCATED, 0, 2)
        ]

    def test_what_was_cut_bootstraps_and_is_no_finished_episode(self) -> None:
        player = actor(vector([Script(0, LONG)], AUTORESETS[0]))
        pool = LocalReplay(
            player.envs.spec,
            ReplayConfig(capacity=50, learning_starts=1, batch_size=1),
            DqnConfig(gamma=0.5, n_step=3),
            rng=np.random.default_rng(0),
            transports=[player.ring],
            envs=1,
        )
        ended = player.collect(2, 0.0).ended
        player.cut()
        ended += player.collect(5, 0.0).ended
        pool.insert()
        batch = pool.sample(100)

        assert [(e.score, e.length) for e in ended] == [(0.0, 2)]  # the second life, not the cut
        last = np.flatnonzero(batch.rows == 1)[0]
        assert batch.discount[last] == 0.5
        assert batch.next_obs[last].tolist() == [0.0, 0.0, 2.0]
        player.envs.close()
        shut(pool)

    def test_new_episodes_begin_everywhere_from_a_seed_derived_from_the_runs(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        played = scripts()
        open_actors.append(player := actor(vector(played, mode), seed=11))
        for _ in range(2):
            player.collect(6, 0.0)
            player.cut()

        wanted = [seeding.integer(11, Role.ENVS, incarnation=cut) for cut in range(3)]
        assert [s for s in played[0].seeds if s is not None] == wanted
        assert len(set(wanted)) == 3
        assert player.t.tolist() == [0, 0, 0]
        assert player.score.tolist() == [0.0, 0.0, 0.0]

    def test_no_episode_number_is_used_twice(
        self, mode: AutoresetMode, open_actors: list[Actor]
    ) -> None:
        open_actors.append(player := actor(vector(scripts(), mode)))
        for steps in (4, 3, 0, 5, 9):
            player.collect(steps, 0.0)
            player.cut()

        keys = [(row["env"], row["episode"], row["t"]) for row in written(player.ring)]
        assert len(keys) == len(set(keys))
        ends = [(r["env"], r["episode"]) for r in written(player.ring) if r["end"] != RUNNING]
        assert len(ends) == len(set(ends))


def trained(seed: int, envs: Any, **algo: Any) -> Dqn:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Dqn(DqnConfig(**algo), NetConfig(hidden=(8,)), EnvConfig(), envs.spec)


SAVED: dict[str, Any] = {
    "one by one": lambda: make(EnvConfig(frame_stack=2), 3, factory=lambda: basic.Pictures(5)),
    "a step later": lambda: pictures(AutoresetMode.NEXT_STEP, 2, 3),
    "native": lambda: make(EnvConfig(max_episode_steps=9), 3),
    "cut": lambda: make(EnvConfig(), 3, factory=Wander),
}


@pytest.mark.parametrize("maker", SAVED.values(), ids=SAVED)
@pytest.mark.parametrize("before", [0, 6, 8])  # the middle of an episode, and its end
def test_a_restored_actor_goes_on_bit_for_bit(
    maker: Any, before: int, open_actors: list[Actor]
) -> None:
    one, other = maker(), maker()
    open_actors += [
        original := actor(one, trained(0, one), values=True),
        copy := actor(other, trained(99, other), seed=7, values=True),
    ]
    original.version, original.since_pull = 12, 5
    original.collect(3 * before, 0.5)
    if original.envs.export_state() is None:
        original.cut()

    numbers, arrays = original.state()
    copy.restore(json.loads(json.dumps(numbers)), arrays)
    np.testing.assert_array_equal(original.view.seen(), copy.view.seen())
    begin = original.ring.committed
    ended = [player.collect(90, 0.5).ended for player in (original, copy)]

    assert written(original.ring)[begin:] == written(copy.ring)
    assert ended[0] == ended[1]
    assert (copy.version, copy.since_pull) == (12, original.since_pull)
    assert numbers["envs"] is None or maker is not SAVED["cut"]


def test_one_that_was_cut_goes_on_with_the_progress_its_environments_had_made(
    open_actors: list[Actor],
) -> None:
    """The episodes after the cut begin where that many before it have led to."""
    one, other = (make(EnvConfig(), 3, factory=Maturing) for _ in range(2))
    open_actors += [
        original := actor(one, trained(0, one)),
        copy := actor(other, trained(0, other)),
    ]
    assert len(original.collect(600, 0.5).ended) > 3
    original.cut()

    numbers, arrays = original.state()
    copy.restore(json.loads(json.dumps(numbers)), arrays)
    begin = original.ring.committed
    for player in (original, copy):
        player.collect(90, 0.5)

    assert numbers["envs"] is None
    assert one.export_progress() == other.export_progress()
    assert written(original.ring)[begin:] == written(copy.ring)


def test_a_state_from_before_there_was_progress_is_one_too(open_actors: list[Actor]) -> None:
    envs = make(EnvConfig(), 2, factory=Maturing)
    open_actors.append(one := actor(envs, trained(0, envs)))
    one.cut()
    numbers, arrays = one.state()
    del numbers["progress"]

    one.restore(numbers, arrays)

    assert one.t.tolist() == [0, 0]


class TestExploring:
    """Dqn.act, as the actor calls it."""

    @staticmethod
    def chosen(epsilon: float, draws: int = 200, envs: int = 50) -> Any:
        """Returns actions of a policy whose greedy action is always 2."""
        algorithm = Dqn(DqnConfig(), NetConfig(hidden=()), EnvConfig(), flat_spec(3, 4))
        with torch.no_grad():
            algorithm.acting.body.out.weight.zero_()  # type: ignore[union-attr, operator]
            algorithm.acting.body.out.bias.copy_(torch.tensor([0.0, 1.0, 2.0, 1.5]))  # type: ignore[union-attr, operator]
        rng, obs = np.random.default_rng(5), np.zeros((envs, 3), np.float32)
        return np.stack([algorithm.act(obs, rng, epsilon=epsilon).action for _ in range(draws)])

    def test_epsilon_0_is_greedy_and_draws_nothing(self) -> None:
        class Never:
            def random(self, size: int) -> Any:
                raise AssertionError("greedy play needs no chance")

        algorithm = Dqn(DqnConfig(), NetConfig(hidden=(4,)), EnvConfig(), flat_spec(3, 4))
        obs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
        with torch.no_grad():
            best = algorithm.acting(torch.from_numpy(obs)).argmax(1).tolist()

        assert algorithm.act(obs, Never(), epsilon=0.0).action.tolist() == best  # type: ignore[arg-type]
        assert (self.chosen(0.0, draws=1) == 2).all()

    @pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
    def test_a_share_epsilon_of_actions_is_random_and_all_are_equally_likely(
        self, epsilon: float
    ) -> None:
        actions = self.chosen(epsilon)
        counts, total = np.bincount(actions.ravel(), minlength=4), actions.size

        # Each count is binomial. Five deviations either way: a correct policy with another seed
        # fails less than once in 10^5 (four counts, three epsilons, 2-sided 6e-7 each).
        for action, count in enumerate(counts):
            p = epsilon / 4 + (1 - epsilon) * (action == 2)
            assert abs(count - total * p) <= 5 * np.sqrt(total * p * (1 - p)) + 1e-9

    def test_exploring_in_one_environment_says_nothing_about_the_next(self) -> None:
        random = self.chosen(0.5, draws=4000, envs=2) != 2
        both = random.all(1).mean()

        # P(not greedy) = 3/8 each; 5 deviations of a share of 4000: fails once in 10^6.
        p = (3 / 8) ** 2
        assert abs(both - p) <= 5 * np.sqrt(p * (1 - p) / 4000)


class TestPulling:
    def test_only_newer_versions_are_taken(self, open_actors: list[Actor]) -> None:
        open_actors.append(player := actor(vector(scripts(), AUTORESETS[0])))
        weight_store = WeightStore(arrays_of(player.algorithm.acting))
        fresh = {k: np.full_like(v, 3.0) for k, v in arrays_of(player.algorithm.acting).items()}

        assert not player.pull(weight_store)  # nothing published yet
        weight_store.publish(fresh)
        assert player.pull(weight_store)
        assert not player.pull(weight_store)
        assert player.version == 1
        assert all((v == 3.0).all() for v in arrays_of(player.algorithm.acting).values())
        weight_store.close()

    def test_weights_that_were_not_published_are_not_seen(self, open_actors: list[Actor]) -> None:
        open_actors.append(player := actor(vector(scripts(), AUTORESETS[0])))
        weight_store = WeightStore(arrays_of(player.algorithm.acting))
        ours = {k: np.ones_like(v) for k, v in arrays_of(player.algorithm.acting).items()}
        weight_store.publish(ours)
        player.pull(weight_store)
        for array in ours.values():
            array += 1.0  # the learner goes on
        player.pull(weight_store)

        assert all((a == 1.0).all() for a in arrays_of(player.algorithm.acting).values())
        weight_store.close()

    def test_a_pull_is_due_after_its_period_and_until_there_was_something_new(
        self, open_actors: list[Actor]
    ) -> None:
        envs = vector([Script(0, LONG)], AUTORESETS[0])
        config = ActorConfig(pull_period=4)
        open_actors.append(player := Actor(envs, Told(), config, EnvConfig(), seed=0))
        weight_store = WeightStore(arrays_of(player.algorithm.acting))

        due = []
        for _ in range(5):
            due.append(player.due())
            player.collect(1, 0.0)
        player.pull(weight_store)
        due.append(player.due())
        weight_store.publish(arrays_of(player.algorithm.acting))
        player.pull(weight_store)

        assert due == [False, False, False, False, True, True]
        assert not player.due()
        weight_store.close()


class TestTransport:
    def capacity(self, width: int, **settings: Any) -> int:
        """Returns the rows of a ring for observations of so many floats."""
        ring = transport(flat_spec(width), ActorConfig(**settings), index=0, incarnation=0)
        capacity = ring.capacity
        ring.close()
        return capacity

    def test_it_has_room_for_many_chunks(self) -> None:
        assert self.capacity(4, chunk=64, envs=8) == CHUNKS * (64 + 2 * 8)

    def test_rows_that_are_large_get_fewer_but_never_less_than_four_chunks(self) -> None:
        row = RING_BYTES // (10 * 66)  # ten chunks of them fit

        assert self.capacity(row // 4 - 20, chunk=64, envs=1) == 10 * 66
        assert self.capacity(row, chunk=64, envs=1) == FEWEST * 66

    def test_where_episodes_are_asked_for_it_is_as_long_as_results_depend_on(self) -> None:
        assert self.capacity(4, chunk=64, envs=8, chunk_episodes=2) == LONG_RING
        assert self.capacity(4, chunk=2048, envs=8, chunk_episodes=2) == 4 * (2048 + 2 * 8)


def test_one_whose_state_has_no_weights_pulls_before_it_plays():
    """They were an inference server's. What it had otherwise goes on."""
    made = actor(vector([Script(0, [Life((1.0, 1.0), TERMINATED)])], AutoresetMode.SAME_STEP))
    made.version, made.since_pull = 7, 0
    numbers, arrays = made.state()
    with_weights, cuts = dict(arrays), numbers["cuts"]

    made.restore(numbers, with_weights)
    assert (made.version, made.due()) == (7, False)
    made.restore(numbers, {k: a for k, a in arrays.items() if not k.startswith("net.")})
    assert (made.version, made.due(), made.cuts) == (0, True, cuts)
    made.close()

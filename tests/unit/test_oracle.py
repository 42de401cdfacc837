"""The oracle, called in one process: whoever else asks, everybody gets its own answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rookery.algos import Acted, Algorithm, build_algorithm, written
from rookery.algos.chance import Choir, normal
from rookery.board import Board
from rookery.booth import Booths, Question, layout_of
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.pathfinding.curriculum import Lesson
from rookery.envs.pathfinding.rules import Rules
from rookery.envs.pathfinding.team import action_space, observation_space
from rookery.envs.spaces import spec_of
from rookery.errors import ConfigError, ProtocolError, StalledError
from rookery.loops import caller as caller_module
from rookery.loops.caller import Caller, Line
from rookery.loops.oracle import Oracle, Ready, Setup
from rookery.nets.arrays import arrays_of
from rookery.types import Array, EnvSpec, Leaf

ENVS, ACTORS = 4, 3
SEEN = spaces.Dict(
    {"a": spaces.Box(-1.0, 1.0, (3,), np.float32), "b": spaces.Box(0, 255, (6, 6, 3), np.uint8)}
)
CHOICE, MOTION = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2, 2), np.float32)
CHOICES = spaces.MultiDiscrete([2, 3, 4])
LESSON = Lesson(agents=3, size=6)
TEAM = observation_space(LESSON, Rules(radius=1)), action_space(LESSON)
KINDS: dict[str, tuple[Any, ...]] = {  # settings, actions, and what is seen if it is not `SEEN`
    "dqn": ({"algo.name": "dqn"}, CHOICE),
    "dueling": ({"algo.name": "dqn", "algo.dueling": True}, CHOICE),
    "noisy": ({"algo.name": "dqn", "algo.noisy": True}, CHOICE),
    "implicit": ({"algo.name": "dqn", "algo.values": "implicit"}, CHOICE),
    "r2d2": ({"algo.name": "r2d2"}, CHOICE),
    "sac": ({"algo.name": "sac"}, MOTION),
    "discrete sac": ({"algo.name": "sac"}, CHOICE),
    "td3": ({"algo.name": "td3"}, MOTION),
    "ddpg": ({"algo.name": "ddpg"}, MOTION),
    "tqc": ({"algo.name": "tqc"}, MOTION),
    "ppo": ({"algo.name": "ppo"}, CHOICE),
    "ppo, several": ({"algo.name": "ppo"}, CHOICES),
    "a2c": ({"algo.name": "a2c"}, MOTION),
    "impala": ({"algo.name": "impala", "algo.shared_net": True}, CHOICES),
    "team": ({"algo.name": "team", "algo.temperature": 0.5}, TEAM[1], TEAM[0]),
}


def settings(**changes: Any) -> Config:
    base = {
        "run.mode": "sync",
        "actor.num": ACTORS,
        "actor.envs": ENVS,
        "actor.inference": "central",
        "net.hidden": [8],
        "net.memory": 6,
        "learner.device": "cpu",
    }
    return load(changes=base | changes)


class Temple:
    """An oracle, the algorithm whose weights it has, and the actors' side of the booths."""

    def __init__(self, config: Config, spec: EnvSpec, algorithm: Algorithm):
        self.config, self.algorithm, self.spec = config, algorithm, written(spec, algorithm)
        self.board = Board(arrays_of(algorithm.acting))
        self.board.publish(arrays_of(algorithm.acting))
        self.booths = Booths(layout_of(self.spec, algorithm.memory, ENVS), config.actor.num)
        self.oracle = self.another()

    def another(self) -> Oracle:
        from rookery.engines.interface import copies

        return Oracle(Setup(self.config, self.spec, *copies(self.booths.fd, self.board.fd)))

    def answers(self, questions: dict[int, Question]) -> dict[int, Acted]:
        """Asks all of it at once."""
        for seat, question in questions.items():
            self.booths[seat].ask(question)
        self.oracle.roam()
        return {seat: self.booths[seat].take() for seat in questions}

    def questions(self, **changes: Any) -> dict[int, Question]:
        """Returns a question of each actor; the second one has fewer environments to ask for."""
        rng, found = np.random.default_rng(1), {}
        for seat in range(ACTORS):
            size = ENVS - (seat == 1)
            leaves = {leaf.name: _imagined(leaf, size, rng) for leaf in self.spec.obs}
            memory = None
            if self.algorithm.memory:
                memory = rng.normal(size=(size, self.algorithm.memory)).astype(np.float32)
            epsilon = (0.0, 0.5, 1.0)[seat]
            asked = Question(leaves, memory, 1_000 + seat, epsilon, True, True)
            found[seat] = asked._replace(**changes)
        return found

    def close(self) -> None:
        self.oracle.close()
        self.booths.close()
        self.board.close()


def _imagined(leaf: Leaf, size: int, rng: np.random.Generator) -> Array:
    if leaf.dtype == "float32":
        return rng.normal(size=(size, *leaf.shape)).astype(np.float32)
    most = {"b": 256, "view": 64, "place": LESSON.size}[leaf.name]
    return rng.integers(0, most, (size, *leaf.shape), leaf.dtype)


@contextmanager
def temple(changes: dict[str, Any], space: Any, seen: Any = SEEN) -> Iterator[Temple]:
    config, spec = settings(**changes), spec_of("here", seen, space)
    made = Temple(config, spec, build_algorithm(config, spec))
    try:
        yield made
    finally:
        made.close()


def same(found: Acted, wanted: Acted) -> None:
    np.testing.assert_allclose(found.action, wanted.action, atol=1e-6)
    for one, other in zip(found[1:3] + found[4:5], wanted[1:3] + wanted[4:5], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5) if other is not None else None
        assert (one is None) == (other is None)
    assert found.extras.keys() == wanted.extras.keys()
    for name, extra in wanted.extras.items():
        np.testing.assert_allclose(found.extras[name], extra, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_does_not_depend_on_who_else_is_asking(kind):
    with temple(*KINDS[kind]) as made:
        questions = made.questions()

        together = made.answers(questions)
        alone = {seat: made.answers({seat: one})[seat] for seat, one in questions.items()}

        for seat, acted in together.items():
            same(acted, alone[seat])
            assert acted.action.dtype == made.spec.action.dtype
            assert len(acted.action) == questions[seat].size


@pytest.mark.parametrize("kind", KINDS)
def test_central_and_local_are_equally_greedy_with_the_same_weights(kind):
    with temple(*KINDS[kind]) as made:
        questions = made.questions(noise=False, epsilon=0.0)

        together = made.answers(questions)

        for seat, asked in questions.items():
            obs = made.spec.pack(asked.leaves)
            rng = np.random.default_rng(0)
            same(
                together[seat],
                made.algorithm.act(obs, rng, noise=False, values=True, memory=asked.memory),
            )


def test_another_seed_is_another_action():
    with temple(*KINDS["sac"]) as made:
        first, other = (made.answers({0: made.questions(seed=seed)[0]})[0] for seed in (1, 2))

        assert (first.action != other.action).all()


def test_each_actor_explores_by_its_own_epsilon():
    """The first never, the last always: over many questions the shares tell them apart."""
    with temple(*KINDS["dqn"]) as made:
        greedy = made.answers(made.questions(epsilon=0.0))
        differs = np.zeros(ACTORS)
        for seed in range(60):
            questions = {s: q._replace(seed=seed * 7 + s) for s, q in made.questions().items()}
            for seat, acted in made.answers(questions).items():
                differs[seat] += (acted.action != greedy[seat].action).mean() / 60

        assert differs[0] == 0.0
        assert 0.25 < differs[1] < 0.5  # 3/4 of a half
        assert 0.65 < differs[2] < 0.85  # 3/4: at least 4 sigma away from either


def test_what_cannot_be_answered_by_one_call_is_answered_by_two():
    with temple(*KINDS["ppo"]) as made:
        questions = made.questions()
        questions[1] = questions[1]._replace(noise=False, values=False)

        answers = made.answers(questions)

        assert answers[0].best is not None
        assert answers[1].best is None
        assert set(answers[0].extras) == {"log_prob"}
        assert not answers[1].extras
        assert made.booths.done[:3] == (3, 3 * ENVS - 1, 1)


def test_in_sync_the_newest_weights_answer_and_the_answer_says_so():
    with temple(*KINDS["dqn"]) as made:
        old = made.answers(made.questions(noise=False, epsilon=0.0))
        arrays = arrays_of(made.algorithm.acting)
        made.board.publish({name: -array for name, array in arrays.items()})

        new = made.answers(made.questions(noise=False, epsilon=0.0))

        assert {acted.version for acted in old.values()} == {1}
        assert {acted.version for acted in new.values()} == {2}
        assert any((new[s].best != old[s].best).any() for s in new)


def test_in_async_weights_are_looked_for_every_so_many_observations():
    changes = {"run.mode": "async", "actor.pull_period": 3 * ENVS}
    with temple({"algo.name": "dqn"} | changes, CHOICE) as made:
        versions = []
        for _ in range(4):
            versions.append(made.answers({0: made.questions()[0]})[0].version)
            made.board.publish(arrays_of(made.algorithm.acting))

        assert versions == [1, 1, 1, 4]


def test_weights_that_are_put_back_before_anybody_asks_are_the_ones_that_answer():
    """A resumed run publishes its version once more, with other weights."""
    with temple(*KINDS["dqn"]) as made:
        made.oracle.roam()
        zeros = {n: np.zeros_like(a) for n, a in arrays_of(made.algorithm.acting).items()}
        made.board.publish(zeros, version=1)

        (acted,) = made.answers({0: made.questions()[0]}).values()

        assert not acted.best.any()


def test_another_oracle_gives_the_same_answer():
    with temple(*KINDS["a2c"]) as made:
        questions = made.questions()
        first = made.answers(questions)
        made.oracle.close()
        made.oracle = made.another()

        again = made.answers(questions)

        for seat, acted in again.items():
            np.testing.assert_array_equal(acted.action, first[seat].action)


def test_it_says_once_that_it_is_ready():
    with temple(*KINDS["dqn"]) as made:
        assert made.oracle.roam() == Ready()
        assert made.oracle.roam() is None


def test_an_algorithm_that_draws_by_itself_is_asked_for_one_actor_at_a_time():
    with temple(*KINDS["dqn"]) as made:
        calls: list[int] = []

        def act(obs: Any, rng: Any, **_: Any) -> Acted:
            calls.append(len(obs["a"]))
            return Acted(rng.integers(0, 4, len(obs["a"])))

        made.oracle.algorithm.act = act
        made.oracle.algorithm.together = False
        made.answers(made.questions())

        assert calls == [ENVS, ENVS - 1, ENVS]


def test_one_that_says_it_does_not_and_does_is_told_what_to_do():
    choir = Choir([])

    with pytest.raises(ProtocolError, match=r"draws with rng.random, but .* `together = False`"):
        choir.random(3)
    assert not isinstance(choir, np.random.Generator)
    with pytest.raises(ValueError, match="concatenate"):
        normal((0,), choir)  # nobody sings


def test_an_actor_asks_and_gets_its_answer():
    """The caller stands in for the algorithm: its memory, its extras, and the version beside."""
    with temple(*KINDS["r2d2"]) as made:
        caller = _caller(made, seat=2)
        over, thread = Event(), None

        def serve() -> None:
            while not over.is_set():
                made.oracle.roam()

        thread = Thread(target=serve)
        thread.start()
        asked = made.questions()[2]
        acted = caller.act(
            dict(asked.leaves), np.random.default_rng(0), epsilon=0.5, memory=asked.memory
        )
        over.set()
        thread.join()

        assert caller.memory == made.algorithm.memory
        assert caller.extras == made.algorithm.extras
        assert acted.version == 1
        assert set(acted.extras) == {"memory", "fresh"}
        assert acted.memory.shape == (ENVS, made.algorithm.memory)
        assert made.booths.done.waited_s > 0
        caller.close()


def test_an_actor_that_is_not_answered_beats_and_gives_up_in_the_end(monkeypatch):
    monkeypatch.setattr(caller_module, "LIMIT_S", 0.005)
    beats: list[int] = []
    with temple(*KINDS["dqn"]) as made:
        caller = _caller(made, seat=0, beat=lambda: beats.append(1))

        with pytest.raises(StalledError, match=r"not answered for 0 s; .* --inference local"):
            caller.act(dict(made.questions()[0].leaves), np.random.default_rng(0))

        assert beats
        caller.close()


def _caller(made: Temple, seat: int, beat: Any = lambda: None) -> Caller:
    from rookery.engines.interface import copies

    (fd,) = copies(made.booths.fd)
    return Caller(Line(made.spec, made.algorithm.memory, ENVS, ACTORS, seat, fd), beat)


def test_a_gpu_without_room_is_a_wrong_request():
    with temple(*KINDS["dqn"]) as made:

        def full(*_: Any, **__: Any) -> Acted:
            raise RuntimeError("CUDA error: out of memory")

        made.oracle.algorithm.act = full
        with pytest.raises(ConfigError, match=r"^GPU out of memory: cpu has .* --inference local"):
            made.answers(made.questions())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run.mode": "single", "actor.num": 1}, "got run.mode single; use --mode sync or"),
        ({"run.engine": "inline"}, "got run.engine inline; use --engine processes, or leave"),
        ({"run.engine": "ray"}, "got run.engine ray; use --engine processes, or leave"),
        ({"actor.devices": ["cuda:0", "cuda:1"]}, "one network on one device, got actor.devices"),
    ],
)
def test_where_it_means_nothing_it_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        settings(**changes)


def test_one_gpu_for_the_oracle_is_fine():
    assert replace(settings(**{"actor.devices": ["cuda:0"]})).actor.devices == ("cuda:0",)

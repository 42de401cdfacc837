"""The inference server, called in one process: every actor gets its own answer."""

from dataclasses import replace
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from central_inference import (
    ACTORS,
    ENVS,
    Service,
    answers_do_not_depend_on_others,
    central_is_as_greedy_as_local,
    service,
    settings,
)
from rookery.actors.inference import inference_client as caller_module
from rookery.actors.inference.inference_client import InferenceClient
from rookery.actors.inference.inference_server import InferenceReady
from rookery.actors.messages import ActorGroupSetup
from rookery.algorithms import Acted
from rookery.algorithms.exploration import BatchedGenerators, normal
from rookery.errors import ConfigError, ProtocolError, StalledError
from rookery.networks.named_arrays import arrays_of

CHOICE, MOTION = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2, 2), np.float32)
CHOICES = spaces.MultiDiscrete([2, 3, 4])
KINDS: dict[str, tuple[Any, ...]] = {  # settings, action space
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
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_does_not_depend_on_who_else_is_asking(kind):
    with service(*KINDS[kind]) as made:
        answers_do_not_depend_on_others(made)


@pytest.mark.parametrize("kind", KINDS)
def test_central_and_local_are_equally_greedy_with_the_same_weights(kind):
    with service(*KINDS[kind]) as made:
        central_is_as_greedy_as_local(made)


def test_another_seed_is_another_action():
    with service(*KINDS["sac"]) as made:
        first, other = (made.answers({0: made.questions(seed=seed)[0]})[0] for seed in (1, 2))

        assert (first.action != other.action).all()


def test_each_actor_explores_by_its_own_epsilon():
    """The first never, the last always: over many questions the shares tell them apart."""
    with service(*KINDS["dqn"]) as made:
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
    with service(*KINDS["ppo"]) as made:
        questions = made.questions()
        questions[1] = questions[1]._replace(noise=False, values=False)

        answers = made.answers(questions)

        assert answers[0].best is not None
        assert answers[1].best is None
        assert set(answers[0].extras) == {"log_prob"}
        assert not answers[1].extras
        assert made.slots.done[:3] == (3, 3 * ENVS - 1, 1)


def test_in_sync_the_newest_weights_answer_and_the_answer_says_so():
    with service(*KINDS["dqn"]) as made:
        old = made.answers(made.questions(noise=False, epsilon=0.0))
        arrays = arrays_of(made.algorithm.acting)
        made.weight_store.publish({name: -array for name, array in arrays.items()})

        new = made.answers(made.questions(noise=False, epsilon=0.0))

        assert {acted.version for acted in old.values()} == {1}
        assert {acted.version for acted in new.values()} == {2}
        assert any((new[s].best != old[s].best).any() for s in new)


def test_in_async_weights_are_looked_for_every_so_many_observations():
    changes = {"run.mode": "async", "actor.pull_period": 3 * ENVS}
    with service({"algo.name": "dqn"} | changes, CHOICE) as made:
        versions = []
        for _ in range(4):
            versions.append(made.answers({0: made.questions()[0]})[0].version)
            made.weight_store.publish(arrays_of(made.algorithm.acting))

        assert versions == [1, 1, 1, 4]


def test_weights_restored_before_the_first_request_answer_it():
    """A resumed run publishes its version once more, with other weights."""
    with service(*KINDS["dqn"]) as made:
        made.inference_server.work()
        zeros = {n: np.zeros_like(a) for n, a in arrays_of(made.algorithm.acting).items()}
        made.weight_store.publish(zeros, version=1)

        (acted,) = made.answers({0: made.questions()[0]}).values()

        assert not acted.best.any()


def test_another_inference_server_gives_the_same_answer():
    with service(*KINDS["a2c"]) as made:
        questions = made.questions()
        first = made.answers(questions)
        made.inference_server.close()
        made.inference_server = made.another()

        again = made.answers(questions)

        for seat, acted in again.items():
            np.testing.assert_array_equal(acted.action, first[seat].action)


def test_it_says_once_that_it_is_ready():
    with service(*KINDS["dqn"]) as made:
        assert made.inference_server.work() == InferenceReady()
        assert made.inference_server.work() is None


def test_an_algorithm_that_draws_by_itself_is_asked_for_one_actor_at_a_time():
    with service(*KINDS["dqn"]) as made:
        calls: list[int] = []

        def act(obs: Any, rng: Any, **_: Any) -> Acted:
            calls.append(len(obs["a"]))
            return Acted(rng.integers(0, 4, len(obs["a"])))

        made.inference_server.algorithm.act = act
        made.inference_server.algorithm.batches_actors = False
        made.answers(made.questions())

        assert calls == [ENVS, ENVS - 1, ENVS]


def test_one_that_says_it_does_not_and_does_is_told_what_to_do():
    generators = BatchedGenerators([])

    with pytest.raises(
        ProtocolError, match=r"samples with rng.random, but .* `batches_actors = False`"
    ):
        generators.random(3)
    assert not isinstance(generators, np.random.Generator)
    with pytest.raises(ValueError, match="concatenate"):
        normal((0,), generators)


def test_an_actor_asks_and_gets_its_answer():
    """The caller stands in for the algorithm: its memory, its extras, and the version beside."""
    with service(*KINDS["r2d2"]) as made:
        caller = _caller(made, seat=2)
        over, thread = Event(), None

        def serve() -> None:
            while not over.is_set():
                made.inference_server.work()

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
        assert made.slots.done.waited_s > 0
        caller.close()


def test_an_actor_that_is_not_answered_beats_and_gives_up_in_the_end(monkeypatch):
    monkeypatch.setattr(caller_module, "LIMIT_S", 0.005)
    beats: list[int] = []
    with service(*KINDS["dqn"]) as made:
        caller = _caller(made, seat=0, beat=lambda: beats.append(1))

        with pytest.raises(StalledError, match=r"not answered for 0 s; .* --inference local"):
            caller.act(dict(made.questions()[0].leaves), np.random.default_rng(0))

        assert beats
        caller.close()


def _caller(made: Service, seat: int, beat: Any = lambda: None) -> InferenceClient:
    from rookery.engines.engine import copies

    (fd,) = copies(made.slots.fd)
    setup = ActorGroupSetup(made.config, made.spec, weights_fd=-1, memory=made.algorithm.memory)
    return InferenceClient(setup, seat, fd, beat)


def test_a_gpu_without_room_is_a_wrong_request():
    with service(*KINDS["dqn"]) as made:

        def full(*_: Any, **__: Any) -> Acted:
            raise RuntimeError("CUDA error: out of memory")

        made.inference_server.algorithm.act = full
        with pytest.raises(ConfigError, match=r"^GPU out of memory: cpu has .* --inference local"):
            made.answers(made.questions())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"run.mode": "single", "actor.num": 1},
            "sync or async only, got single; use one",
        ),
        (
            {"run.engine": "inline"},
            "processes only, got inline; use --engine processes, or leave",
        ),
        (
            {"run.engine": "ray"},
            "processes only, got ray; use --engine processes, or leave",
        ),
        ({"actor.devices": ["cuda:0", "cuda:1"]}, "one network on one device, got actor.devices"),
    ],
)
def test_where_it_means_nothing_it_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        settings(**changes)


def test_one_gpu_for_the_inference_server_is_fine():
    assert replace(settings(**{"actor.devices": ["cuda:0"]})).actor.devices == ("cuda:0",)

"""Stable-Baselines3's algorithms as runs of ours."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common import policies
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import rookery
from inline_runs import finish, inline
from rookery import plugins
from rookery.cli.main import main
from rookery.config.load import load
from rookery.config.other_libraries import SB3_NAMES
from rookery.config.parse import keys
from rookery.config.section import Section, hints
from rookery.errors import ConfigError
from rookery.evaluation.backend import RunRequest
from rookery.event import Collected, Evaluated, Event, Logged, Saved, Started, Stopped, Warned
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.training.launch import session
from sb3_runs import SHORT, SMALL, small

__all__ = ["inline"]  # a fixture


def opened(tmp_path: Path, algorithm: str = "DQN", **changes: Any) -> Any:
    """A session of a small run."""
    run_dir = str(tmp_path / "run")
    return session(small(algorithm, **{"run.run_dir": run_dir, **changes}), RunRequest())


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", SMALL)
def test_every_algorithm_runs_to_its_end_and_leaves_a_model_that_sb3_opens(algorithm, tmp_path):
    events: list[Event] = []

    with opened(tmp_path, algorithm) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Stopped)
    assert answer["reason"] == "env_steps"
    assert answer["env_steps"] >= 400
    evaluation = [event for event in events if isinstance(event, Evaluated)]
    assert [event.counters.env_steps for event in evaluation][:2] == [200, 400]
    logged = [event for event in events if isinstance(event, Logged)]
    assert [event.counters.env_steps for event in logged][:2] == [150, 300]
    assert any(name.startswith("train/") for name in logged[-1].metrics)
    ended = [one for event in events if isinstance(event, Collected) for one in event.ended]
    assert len(ended) == answer["episodes"] > 0
    checkpoint, saved = [event for event in events if isinstance(event, Saved)]
    assert Path(checkpoint.path).parent == tmp_path / "run" / "checkpoints"
    model = getattr(stable_baselines3, algorithm).load(saved.path, device="cpu")
    assert fingerprint(arrays_of(model.policy)) == answer["weights_sha256"]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("algorithm", "points"), [("DQN", [200, 400]), ("PPO", [200, 400, 448])])
def test_every_env_step_is_evaluated_and_logged_once_and_the_last_one_with_the_saved_model(
    algorithm, points, tmp_path
):
    """SB3 learns once more after its last env step: its final policy is the one that counts."""
    events: list[Event] = []

    with opened(tmp_path, algorithm, **{"report.log_period": 200}) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    evaluated = [event.counters for event in events if isinstance(event, Evaluated)]
    assert [counters.env_steps for counters in evaluated] == points
    assert evaluated[-1].learner_steps == answer["learner_steps"]
    logged = [event.counters for event in events if isinstance(event, Logged)]
    assert [counters.env_steps for counters in logged] == [200, points[-1]]
    assert logged[-1].learner_steps == answer["learner_steps"]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "PPO"])
def test_a_run_gives_the_weights_that_sb3_gives_by_itself(algorithm, tmp_path):
    # Models draw from a generator that all share: here the evaluator's would be one of them.
    with opened(tmp_path, algorithm, **{"run.seed": 3, "eval.period": 10**6}) as training_run:
        answer = finish(training_run)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kwargs = dict(SMALL[algorithm], policy_kwargs={"net_arch": [8]}, seed=3, device="cpu")
    if algorithm != "PPO":
        kwargs["buffer_size"] = load("sb3-dqn").replay.capacity
    if isinstance(kwargs.get("train_freq"), list):
        kwargs["train_freq"] = tuple(kwargs["train_freq"])
    env = gym.make("Pendulum-v1" if algorithm == "SAC" else "CartPole-v1")
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, **kwargs)
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(400, log_interval=None)
    torch.set_num_threads(threads)
    assert fingerprint(arrays_of(model.policy)) == answer["weights_sha256"]


OF_CONFIG = tuple(
    f"/config/{name}.py" for name in ("load", "parse", "refusals", "section", "algorithms")
)
ELSEWHERE = {  # used, but not in a run that is one process and has no console
    "about": "rookery list",
    "actor.env_step_timeout_s": "check of the environment, evaluation process",
    "eval.max_restarts": "evaluation process",
    "eval.timeout_s": "evaluation process",
    "report.plain_period_s": "console",
    "report.tensorboard": "evaluation process",
    "report.timeline": "evaluation process",
    "report.wandb_mode": "evaluation process",
}
# read by what all runs share, as the default
SHARED = {"env.frame_stack", "env.vector", "selfplay.opponents"}


@pytest.fixture
def settings_read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The settings that are read outside the modules that merge, check and write all of them."""
    found: set[str] = set()

    def noting(section: Section, name: str) -> Any:
        value = object.__getattribute__(section, name)
        if name in hints(type(section)) and not isinstance(value, Section):
            reader = sys._getframe(1).f_code.co_filename
            if not reader.endswith((*OF_CONFIG, "/dataclasses.py", "<string>")):
                found.add(f"{section.where}.{name}".lstrip("."))
        return value

    monkeypatch.setattr(Section, "__getattribute__", noting, raising=False)
    return found


@pytest.mark.usefixtures("inline")
def test_the_settings_that_a_run_uses_are_the_ones_that_are_not_refused(settings_read, tmp_path):
    with opened(tmp_path, **{"sharing.pool": str(tmp_path / "pool")}) as training_run:
        finish(training_run)
    used = plugins.backends()["sb3"].settings
    listed = {key for key in keys() if any(f"{key}.".startswith(f"{name}.") for name in used)}

    assert settings_read - listed == SHARED
    assert listed - settings_read == set(ELSEWHERE)


@pytest.mark.usefixtures("inline")
def test_a_solved_run_answers_with_the_weights_that_solved_it(tmp_path):
    """A pole stands for 8 steps whatever one does: the first mark is the one that passes."""
    with opened(tmp_path, **{"eval.target": 8.0}) as training_run:
        answer = finish(training_run)

    assert (answer["solved"], answer["reason"], answer["env_steps"]) == (True, "target", 200)
    model = stable_baselines3.DQN.load(tmp_path / "run" / "model.zip", device="cpu")
    assert fingerprint(arrays_of(model.policy)) == answer["weights_sha256"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == answer


@pytest.mark.usefixtures("inline")
def test_the_evaluator_plays_what_the_model_would(tmp_path):
    """Both scales of actions: what is evaluated is the policy that SB3 predicts with."""
    with opened(tmp_path, "SAC") as training_run:
        finish(training_run)
    model = stable_baselines3.SAC.load(tmp_path / "run" / "model.zip", device="cpu")
    from rookery.envs.make import make
    from rookery.networks.named_arrays import load_arrays
    from rookery.sb3.models import Sb3Policy

    config = load("sb3-sac", changes={"sb3.kwargs": {"policy_kwargs": {"net_arch": [8]}}})
    envs = make(config.env, 4)
    player = Sb3Policy(config, envs.codec, None)
    load_arrays(player.acting, arrays_of(model.policy))
    obs = envs.reset(seed=0)
    wanted, _ = model.predict(obs, deterministic=True)
    acted = player.act(obs, np.random.default_rng(0), noise=False)

    np.testing.assert_allclose(envs.codec.decode_action(acted.action), wanted, rtol=1e-5)
    envs.close()


@pytest.mark.usefixtures("inline")
def test_episodes_and_callbacks_end_a_run_at_once(tmp_path):
    with opened(tmp_path / "a", **{"run.episodes": 3}) as training_run:
        answer = finish(training_run)
    assert (answer["reason"], answer["episodes"]) == ("episodes", 3)

    def stop(event: Event) -> str | None:
        return "stop" if isinstance(event, Logged) else None

    run = load("sb3-dqn", changes={**SHORT, "run.run_dir": str(tmp_path / "b")})
    *_, stopped = rookery.events(run, callbacks=[stop])
    assert isinstance(stopped, Stopped)
    assert (stopped.reason, stopped.counters.env_steps) == ("callback", 150)


@pytest.mark.usefixtures("inline")
def test_leaving_the_loop_ends_the_thread_and_frees_the_folder(tmp_path):
    with opened(tmp_path) as training_run:
        events = training_run.events()
        while not isinstance(next(events), Logged):
            pass
        events.close()

    assert not training_run.learning.alive
    assert not (tmp_path / "run" / "result.json").exists()


class Broken(gym.Wrapper[Any, Any, Any, Any]):
    """Falls apart after a while."""

    def step(self, action: Any) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken > 50:
            raise ZeroDivisionError("the pole is gone")
        return super().step(action)


@pytest.mark.usefixtures("inline")
def test_what_an_environment_raises_is_a_lost_run_with_its_traceback(tmp_path):
    with (
        pytest.raises(rookery.RookeryError, match="ZeroDivisionError: the pole is gone") as lost,
        opened(tmp_path, **{"env.wrappers": ["test_sb3_backend:Broken"]}) as training_run,
    ):
        finish(training_run)

    assert lost.value.exit_code == 3
    assert "raise ZeroDivisionError" in lost.value.__notes__[0]


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("SAC", {"env.id": "CartPole-v1"}, "only supports"),
        ("DQN", {"sb3.kwargs": {"lerning_rate": 1.0}}, "unexpected keyword argument"),
        ("TD3", {"sb3.kwargs": {"action_noise": "normal"}}, "must be a number"),
        ("SAC", {"replay.capacity": 10**12}, "lower replay.capacity"),
        ("DQN", {"learner.device": "cuda:99"}, "this machine has"),
    ],
)
@pytest.mark.usefixtures("inline")
def test_what_sb3_cannot_build_is_refused_and_leaves_no_run(algorithm, changes, said, tmp_path):
    with (
        pytest.raises(ConfigError, match=said),
        opened(tmp_path, algorithm, **changes),
    ):
        pass

    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.usefixtures("inline")
def test_networks_of_sb3_are_refused_where_rookerys_own_are_needed(tmp_path, capsys):
    with opened(tmp_path) as training_run:
        finish(training_run)
    run_dir = str(tmp_path / "run")

    for argv in (
        ["train", "cartpole", "--init-from", run_dir, "--run-dir", str(tmp_path / "b")],
        ["export", run_dir],
        ["ladder", run_dir],
    ):
        assert main(argv) == 2
        assert "from stable_baselines3 import DQN" in capsys.readouterr().err


@pytest.mark.usefixtures("inline")
def test_a_run_borrows_from_another_one_and_leaves_no_pool(tmp_path):
    pool = {
        "sharing.pool": str(tmp_path / "pool"),
        "sharing.cross_sample_ratio": 0.25,
        "sb3.kwargs.n_steps": 3,
    }
    with opened(tmp_path, **pool, **{"run.run_dir": str(tmp_path / "lender")}) as lender:
        played = (event for event in lender.events() if isinstance(event, Logged))
        next(played)  # it stands at its first mark, with 150 rows
        with opened(tmp_path, **pool) as borrower:
            events: list[Event] = []
            answer = finish(borrower, lambda _, event: events.append(event))
            assert borrower.model.replay_buffer.n_steps == 3
        assert list((tmp_path / "pool").glob("lender-*.ring"))

    shares = [e.metrics["sharing/foreign_share"] for e in events if isinstance(e, Logged)]
    assert shares[-1] == pytest.approx(0.25)
    assert not (tmp_path / "pool").exists()
    model = stable_baselines3.DQN.load(tmp_path / "run" / "model.zip", device="cpu")
    assert fingerprint(arrays_of(model.policy)) == answer["weights_sha256"]


@pytest.mark.usefixtures("inline")
def test_an_on_policy_run_does_not_share_and_says_so(tmp_path):
    events: list[Event] = []

    with opened(tmp_path, "PPO", **{"sharing.pool": str(tmp_path / "pool")}) as training_run:
        finish(training_run, lambda _, event: events.append(event))

    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert warned.kind == "sharing"
    assert "PPO is on-policy" in warned.message
    assert not (tmp_path / "pool").exists()


def test_the_names_that_errors_translate_are_sb3s():
    """Those of the zoo and of sb3-contrib, which need not be installed, are written out."""
    kinds: list[Any] = [getattr(stable_baselines3, name) for name in SMALL]
    kinds += [stable_baselines3.HerReplayBuffer, EvalCallback, CheckpointCallback]
    kinds += [VecNormalize, VecFrameStack, make_vec_env, BaseAlgorithm.learn]
    kinds += [policies.ActorCriticPolicy, policies.ContinuousCritic]
    others = {"n_timesteps", "env_wrapper", "normalize", "noise_std"}
    others |= {"n_quantiles", "top_quantiles_to_drop_per_net"}

    known = {name for kind in kinds for name in inspect.signature(kind).parameters}

    assert SB3_NAMES.keys() - known == others

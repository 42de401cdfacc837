"""train_dqn at games, with workers in processes of their own."""

import signal
from typing import Any

import pytest

import rookery
from eventually import eventually
from rookery.errors import ConfigError
from rookery.runtime import machine
from run_processes import settled

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "env": "tictactoe",
    "n_episodes": 64,
    "num_workers": 2,
    "episodes_per_batch": 4,
    "batch_size": 8,
    "hidden": (8,),
    "seed": 5,
    "device": "cpu",
}
SNAPSHOTS = {"selfplay.snapshot_period": 8}


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)


@pytest.mark.parametrize("tables", [1, 16])
def test_games_in_processes_are_those_that_are_played_inline(tables):
    settings = SNAPSHOTS | {"actor.envs": tables}
    inline, processes = (
        rookery.train_dqn(**SMALL, engine=engine, settings=settings)
        for engine in ("inline", "processes")
    )

    assert inline.weights_sha256 == processes.weights_sha256
    assert inline.returns == processes.returns
    assert inline.win_rates == processes.win_rates
    assert "past" in inline.win_rates


def test_a_function_that_makes_a_pettingzoo_game_will_do(tmp_path):
    def game() -> Any:
        from pettingzoo.classic.tictactoe.tictactoe import env

        return env()

    agent = rookery.train_dqn(**SMALL | {"env": game}, settings=SNAPSHOTS)
    again = rookery.DqnAgent.open(agent.save(tmp_path / "agent"), env=game)

    assert {"random", "scripted", "past"} <= set(agent.win_rates)
    (one,) = rookery.rollout_worker(again.policy(), episodes=1, seed=1)
    assert one.score in (-1.0, 0.0, 1.0)


def test_what_a_worker_refuses_is_said_and_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(ConfigError, match=r"selfplay\.opponents needs a game with several seats"):
        rookery.train_dqn(
            **SMALL | {"env": "CartPole-v1"}, settings={"selfplay.opponents": {"random": 1}}
        )

    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import rookery

def note(done):
    if done.learner_steps >= 16:
        open("began", "w").close()

rookery.train_dqn(
    env="tictactoe",
    num_workers=2,
    seed=0,
    callback=note,
    settings={"selfplay.snapshot_period": 4, "actor.envs": 8},
)
"""


def test_ctrl_c_leaves_no_process_and_no_snapshot(forker, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = forker.start([], tmp_path, {"TMPDIR": str(temporary)}, script=INTERRUPTED)
    assert eventually((tmp_path / "began").exists, 90.0), run.said
    assert list(temporary.glob("*/opponents/*"))
    run.send(signal.SIGINT)

    assert run.wait(20.0) == -signal.SIGINT
    assert settled(run.pid)
    assert not list(temporary.iterdir())

"""train_dqn with workers in processes of their own."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from eventually import eventually
from rookery.api.train_dqn import Cycle
from rookery.config.load import load
from rookery.config.schema import Engine
from rookery.envs.toy.basic import Echo
from rookery.runtime import machine
from rookery.training.build import build_parts
from rookery.training.resources import ACTOR_FILES
from run_processes import members, settled

SMALL: dict[str, Any] = {
    "n_episodes": 16,
    "num_workers": 2,
    "episodes_per_batch": 2,
    "batch_size": 8,
    "hidden": (8,),
    "seed": 5,
    "device": "cpu",
}
WITHOUT_CHECK = {"env.check": False}


class Fragile(Echo):
    """Kills its process once: the worker's, never that of the tests."""

    def __init__(self, mark: str, spared: int):
        super().__init__()
        self.mark, self.spared = Path(mark), spared

    def step(self, action: Any) -> Any:
        if os.getpid() != self.spared and not self.mark.exists():
            self.mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_workers_in_processes_play_what_workers_inline_play(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    seen: dict[str, list[Cycle]] = {"inline": [], "processes": []}
    agents = [
        rookery.train_dqn(**SMALL, engine=engine, callback=cycles.append, settings=WITHOUT_CHECK)
        for engine, cycles in seen.items()
    ]

    inline, processes = agents
    assert inline.weights_sha256 == processes.weights_sha256
    assert inline.returns == processes.returns
    for here, there in zip(*seen.values(), strict=True):
        assert here._replace(seconds=0.0) == there._replace(seconds=0.0)


def test_a_worker_that_is_killed_is_replaced_and_its_episodes_are_played(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    fragile = {"mark": str(tmp_path / "killed"), "spared": os.getpid()}

    with pytest.warns(RuntimeWarning, match=r"actor \d was lost \(died.*is replaced"):
        agent = rookery.train_dqn(
            **SMALL, env=Fragile, settings={"env.kwargs": fragile, **WITHOUT_CHECK}
        )

    assert (tmp_path / "killed").exists()
    assert len(agent.returns) == 16
    assert agent.learner_steps == 16


def test_a_worker_takes_as_many_descriptors_as_is_assumed():
    taken = {}
    for num in (1, 2):
        before = machine.open_files()
        local_actors = {"run.mode": "sync", "run.engine": "processes", "actor.num": num}
        parts = build_parts(load("corridor", changes=local_actors))
        taken[num] = machine.open_files() - before
        parts.close()

    assert taken[2] - taken[1] == ACTOR_FILES[Engine.PROCESSES]


INTERRUPTED = """
import rookery

def note(done):
    open("began", "w").close()

try:
    rookery.train_dqn(num_workers=2, seed=0, callback=note)
except KeyboardInterrupt:
    print("interrupted")
    raise
"""


def test_ctrl_c_ends_all_workers_and_is_raised(forker, tmp_path):
    run = forker.start([], tmp_path, script=INTERRUPTED)
    assert eventually((tmp_path / "began").exists, 90.0), run.said
    assert len(members(run.pid)) == 2 + 2  # itself and its workers, and what they are forked from
    run.send(signal.SIGINT)

    assert run.wait(20.0) == -signal.SIGINT
    assert run.stdout.read_text() == "interrupted\n"
    assert settled(run.pid)


def test_an_agent_trained_in_processes_goes_on_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    agent = rookery.train_dqn(**SMALL | {"n_episodes": 4}, env=Echo, settings=WITHOUT_CHECK)

    for trajectory in rookery.rollout_worker(agent.policy(), episodes=3, epsilon=0.2, seed=9):
        agent.add_trajectory_to_buffer(trajectory)
    agent.learn(4)
    again = rookery.DqnAgent.open(agent.save(tmp_path / "agent"))

    assert len(agent.returns) == 4 + 3
    assert again.learner_steps == 4 + 4
    for cue in np.eye(4, dtype=np.float32):
        assert again.act(cue) == agent.act(cue)

"""Path finding in torch, on the first GPU where there is one: worlds, acting, learning.

A piece of work is a stretch of steps of all worlds, or one learner step. Agents are those of
`device.agents` on a GPU, and few on a CPU. Nothing is learned here that would change the work.
"""

from collections.abc import Callable

import torch

from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.learner.captured_learner import CapturedLearner
from rookery.networks.device import pick_device
from rookery.pathfinding.team_actor import TeamActor, choose_precision
from rookery.pathfinding.team_dqn import TeamDQN
from rookery.pathfinding.world.rules import WorldRules

AGENTS, SIZE = 32, 40
STRETCH = 16  # steps
FEW = {"device.agents": 128, "device.rows": 64, "replay.batch_size": 128}  # where there is no GPU


def env(seed: int) -> Callable[[], int]:
    """Steps worlds and computes views; actions are drawn ahead, without a network."""
    actor = _actor(_config(), seed)
    actions = torch.randint(5, (STRETCH, actor.count, AGENTS), device=actor.device)

    def work() -> int:
        for action in actions:
            actor.worlds.step(action)
            actor.worlds.views()
        return _done(actor, STRETCH)

    return work


def act(seed: int) -> Callable[[], int]:
    """Plays: views, network, communication, steps, new cases, rows in replay."""
    actor = _actor(_config(), seed)
    epsilon = torch.full((actor.count,), 0.1, device=actor.device)

    def work() -> int:
        actor.play(STRETCH, epsilon)
        return _done(actor, STRETCH)

    return work


def learn(seed: int) -> Callable[[], int]:
    """Samples, learns from every agent and step of a batch, updates priorities."""
    config = _config()
    actor = _actor(config, seed)
    actor.play(3 * STRETCH, torch.full((actor.count,), 0.1, device=actor.device))
    learner = CapturedLearner(actor.algorithm, config.learner, config.env, actor.device)

    def work() -> int:
        batch, picks = actor.sample(config.replay.batch_size // AGENTS, beta=0.4)
        actor.update_priorities(picks, learner.learn(batch).td_error)
        _wait(actor)
        return config.replay.batch_size * config.algo.learned

    return work


def _config() -> Config:
    few = FEW if pick_device("auto").type == "cpu" else {}
    return load("pathfinding", changes={"algo.teacher": "none", **few})  # the more expensive loss


def _actor(config: Config, seed: int) -> TeamActor:
    choose_precision()
    envs = make(config.env, 1)
    envs.close()
    device = pick_device("auto")
    rng = torch.Generator(device)
    rng.manual_seed(seed)
    algorithm = build_algorithm(config, envs.spec)
    assert isinstance(algorithm, TeamDQN)
    algorithm.networks.to(device)
    return TeamActor(
        algorithm,
        AGENTS,
        worlds=config.device.agents // AGENTS,
        width=SIZE,
        rules=WorldRules(),
        density=None,
        rows=config.device.rows,
        replay=config.replay,
        sizes=[SIZE],
        rng=rng,
    )


def _done(actor: TeamActor, steps: int) -> int:
    _wait(actor)
    return steps * actor.count * actor.agents


def _wait(actor: TeamActor) -> None:
    if actor.device.type == "cuda":
        torch.cuda.synchronize()

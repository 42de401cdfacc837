"""Path finding in torch, on the first GPU where there is one: worlds, acting, learning.

A piece of work is a stretch of steps of all worlds, or one learner step. Agents are those of
`device.agents` on a GPU, and few on a CPU. Nothing is learned here that would change the work.
"""

from collections.abc import Callable

import torch

from rookery.algos import build_algorithm
from rookery.algos.team import Team
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.envs.pathfinding.rules import Rules
from rookery.learner import Recorded, pick_device
from rookery.loops.arena import Arena, choose_precision

AGENTS, SIZE = 32, 40
STRETCH = 16  # steps
FEW = {"device.agents": 128, "device.rows": 64, "replay.batch": 128}  # where there is no GPU


def env(seed: int) -> Callable[[], int]:
    """Worlds step and show what is seen; actions are drawn ahead, and nobody is asked."""
    arena = _arena(_config(), seed)
    actions = torch.randint(5, (STRETCH, arena.count, AGENTS), device=arena.device)

    def work() -> int:
        for action in actions:
            arena.worlds.step(action)
            arena.worlds.views()
        return _done(arena, STRETCH)

    return work


def act(seed: int) -> Callable[[], int]:
    """Everything that playing is: views, network, talk, steps, new cases, rows on the tape."""
    arena = _arena(_config(), seed)
    epsilon = torch.full((arena.count,), 0.1, device=arena.device)

    def work() -> int:
        arena.play(STRETCH, epsilon)
        return _done(arena, STRETCH)

    return work


def learn(seed: int) -> Callable[[], int]:
    """Draws, learns from every agent and step of a batch, reranks."""
    config = _config()
    arena = _arena(config, seed)
    arena.play(3 * STRETCH, torch.full((arena.count,), 0.1, device=arena.device))
    learner = Recorded(arena.algorithm, config.learner, config.env, arena.device)

    def work() -> int:
        batch, picks = arena.draw(config.replay.batch // AGENTS, beta=0.4)
        arena.rerank(picks, learner.learn(batch).td_error)
        _wait(arena)
        return config.replay.batch * config.algo.learned

    return work


def _config() -> Config:
    few = FEW if pick_device("auto").type == "cpu" else {}
    return load("pathfinding", changes={"algo.teacher": "none", **few})  # learning costs more so


def _arena(config: Config, seed: int) -> Arena:
    choose_precision()
    envs = make(config.env, 1)
    envs.close()
    device = pick_device("auto")
    rng = torch.Generator(device)
    rng.manual_seed(seed)
    algorithm = build_algorithm(config, envs.spec)
    assert isinstance(algorithm, Team)
    algorithm.networks.to(device)
    return Arena(
        algorithm,
        AGENTS,
        worlds=config.device.agents // AGENTS,
        width=SIZE,
        rules=Rules(),
        density=None,
        rows=config.device.rows,
        replay=config.replay,
        sizes=[SIZE],
        rng=rng,
    )


def _done(arena: Arena, steps: int) -> int:
    _wait(arena)
    return steps * arena.count * arena.agents


def _wait(arena: Arena) -> None:
    if arena.device.type == "cuda":
        torch.cuda.synchronize()

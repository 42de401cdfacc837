"""The evaluator: plays greedy episodes with given weights and returns their scores."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rookery.algorithms import Algorithm
from rookery.config.schema import Config
from rookery.envs.frame_stack import PolicyInputs
from rookery.envs.make import Envs, Steps
from rookery.envs.turn_based.opponents import opponents_builder
from rookery.errors import StalledError
from rookery.types import Array

MOST_ENVS = 64


class EvaluationResult(NamedTuple):
    """Scores of evaluation episodes, sorted by environment, not by the time of their end."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None
    frames: list[Array]  # of the first environment's first episode, if recorded


class Evaluator:
    """Plays evaluation episodes: the same fixed number in each environment, up to a remainder.

    If the first episodes to end were counted instead, short episodes would be favored.
    """

    def __init__(self, make_envs: Callable[[int], Envs], algorithm: Algorithm, *, episodes: int):
        self.episodes = episodes
        self.envs = make_envs(min(episodes, MOST_ENVS))
        self.algorithm = algorithm
        self._share = np.array(
            [len(range(i, episodes, self.envs.num)) for i in range(self.envs.num)]
        )

    def run(
        self,
        *,
        seed: int,
        epsilon: float = 0.0,
        noise: bool | None = None,
        timeout_s: float = 600.0,
        record: bool = False,
    ) -> EvaluationResult:
        """Plays the evaluation episodes with the algorithm's current weights; returns their scores.

        An action is random with probability `epsilon`, otherwise greedy. With `noise` the policy
        samples actions or adds its exploration noise instead of acting greedily; None: if the
        algorithm sets `evaluate_stochastic`. Raises StalledError if the episodes take longer than
        `timeout_s` seconds.
        """
        noise = self.algorithm.evaluate_stochastic if noise is None else noise
        deadline = time.monotonic() + timeout_s
        rng = np.random.default_rng(seed)
        tally = _Tally(self.envs, self._share)
        view = PolicyInputs(self.envs.spec, self.envs.reset(seed), self.algorithm.memory)
        while not tally.complete:
            if record:
                tally.record()
            acted = self.algorithm.act(
                view.seen(), rng, epsilon=epsilon, noise=noise, memory=view.memory
            )
            steps = self.envs.step(acted.action)
            tally.add(steps)
            view.push(steps, acted.memory)
            if time.monotonic() > deadline:
                raise StalledError(
                    f"{self.envs.name}: {tally.done} of {self.episodes} episodes "
                    f"after {timeout_s:.0f} s; raise eval.timeout_s, or set "
                    "env.max_episode_steps"
                )
        return tally.result()

    def close(self) -> None:
        self.envs.close()


def with_opponents(config: Config, envs: Envs, algorithm: Algorithm) -> None:
    """Lets self-play opponents act for the other players of evaluation games.

    Does nothing in runs without opponents.
    """
    if (builder := opponents_builder(config)) is not None:
        builder.seat_evaluation(config, envs, algorithm)


class _Tally:
    """Collects the scores of evaluation episodes: a fixed number from each environment.

    Further episodes of an environment are ignored.
    """

    def __init__(self, envs: Envs, share: Any):
        self.envs, self.share = envs, share
        self.score, self.length = np.zeros(envs.num), np.zeros(envs.num, dtype=np.int64)
        self.played: list[list[tuple[float, int, float | None]]] = [[] for _ in range(envs.num)]
        self.frames: list[Array] = []

    @property
    def done(self) -> int:
        return sum(map(len, self.played))

    @property
    def complete(self) -> bool:
        return self.done >= int(self.share.sum())

    def record(self) -> None:
        """Keeps a frame of the first environment, until its first episode has ended."""
        if not self.played[0] and (frame := self.envs.render()) is not None:
            self.frames.append(frame)

    def add(self, steps: Steps) -> None:
        self.score += steps.reward * steps.real
        self.length += steps.real
        for i in np.flatnonzero((steps.terminated | steps.truncated) & steps.real):
            if len(self.played[i]) < self.share[i]:
                success = self.envs.finished_info(steps, int(i), ()).get("is_success")
                self.played[i].append((float(self.score[i]), int(self.length[i]), success))
            self.score[i], self.length[i] = 0.0, 0

    def result(self) -> EvaluationResult:
        flat = [episode for played in self.played for episode in played]
        successes = [s for _, _, s in flat if s is not None]
        return EvaluationResult(
            returns=tuple(r for r, _, _ in flat),
            lengths=tuple(n for _, n, _ in flat),
            success_rate=float(np.mean(successes)) if successes else None,
            frames=self.frames,
        )

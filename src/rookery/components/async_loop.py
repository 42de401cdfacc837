"""Asynchronous training (A3C, Mnih et al. 2016): every worker plays and computes gradients.

Each worker is a process with its own environments and its own copy of the networks. It takes the
newest parameters, plays, computes a gradient and hands it to the server, which applies it however
many others have come meanwhile: how old gradients were is counted, and the server's staleness rule
decides what they are worth. `worker_group.py` says why workers are processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rookery import seeding
from rookery.actors.policy import checked, recipe
from rookery.components.agent_worker import Own
from rookery.components.main_loop import WINDOW, MainLoop, integrated, leave
from rookery.components.protocols import Server
from rookery.components.worker_group import Gang
from rookery.config.schema import Config, Mode
from rookery.errors import ConfigError
from rookery.event import Reason
from rookery.runtime.signals import Interrupts
from rookery.seeding import Role
from rookery.server.gradient_worker import RunSetup

WORKERS = 4
TURN_S = 0.02  # the longest a turn waits for gradients
ENDLESS = 1 << 62


class AsyncMainLoop(MainLoop):
    """A `MainLoop` whose workers learn by themselves.

    loop = AsyncMainLoop(environment, replay_buffer, agent, param_server, num_workers=8)
    loop.run_async_training(total_steps=1_000_000)
    loop.get_training_progress()["stale"]                    # versions behind → gradients

    `num_workers` and `num_async_workers` are the same. The agent is one of ours, of any algorithm,
    or one of yours that can be pickled; the environment needs an `env_factory`. Where an algorithm
    learns from replay, each worker has its share of the buffer's capacity; what was stored in the
    buffer itself is not looked at. Pausing, checkpoints and signals are as in `MainLoop`.
    """

    @checked
    def __init__(
        self,
        environment: Any,
        replay_buffer: Any,
        agent: Any,
        parameter_server: Any = None,
        config: Any = None,
        num_workers: int | None = None,
        num_async_workers: int | None = None,
    ):
        super().__init__(environment, replay_buffer, agent, parameter_server, config)
        self.num_workers = agreed(num_workers, num_async_workers)
        self.gang: Gang | None = None
        self.restarts = 0  # workers that were replaced
        self.stale: dict[int, int] = {}  # versions that a gradient was old → how many were

    @checked
    def run_async_training(
        self,
        total_steps: int = 1_000_000,
        evaluation_frequency: int = 0,
        checkpoint_frequency: int = 0,
    ) -> dict[str, Any]:
        """Trains until all workers together have played `total_steps` env steps.

        Evaluates and saves every so many env steps; 0 is never. Returns the progress.
        """
        if total_steps < 1 or min(evaluation_frequency, checkpoint_frequency) < 0:
            raise ConfigError(
                "training has at least 1 env step, and frequencies from 0 on, got "
                f"{total_steps}, {evaluation_frequency} and {checkpoint_frequency}"
            )
        self._stopped.clear()
        self._reason, began, before = None, time.monotonic(), self._seconds
        with Interrupts() as interrupts:
            self._join()
            interrupts.begin()
            self.gang = self._hire()
            try:
                while (reason := self._ending(interrupts, total_steps)) is None:
                    last = self.env_steps
                    self._turn(self.gang)
                    self._seconds = before + time.monotonic() - began
                    self._look(last, self.env_steps, evaluation_frequency, checkpoint_frequency)
            finally:
                gang, self.gang = self.gang, None
                gang.close()
            self._reason = reason
            self._pull()
            if interrupts.reason is not None or checkpoint_frequency:
                self._save_by_itself()
        leave(interrupts)
        return self.get_training_progress()

    def _hire(self) -> Gang:
        agent = getattr(getattr(self.agent, "config", None), "actor", None)
        return Gang(
            hand_for(self.environment, self.replay_buffer, self.agent, self.num_workers),
            self.num_workers,
            self.agent.get_policy_parameters(),
            self.parameter_server,
            name=self.config.worker,
            timeout_s=60.0 if agent is None else agent.env_step_timeout_s,
            max_restarts=3 if agent is None else agent.max_restarts,
        )

    def _turn(self, gang: Gang) -> None:
        gang.allow(self._running.is_set())
        turn = gang.turn(TURN_S)
        self.gradients += turn.gradients
        self.refused = sum(n for code, n in gang.codes.items() if code not in ("ok", "duplicate"))
        self.env_steps += turn.env_steps
        self.episode += len(turn.ended)
        self._returns.extend(episode.score for episode in turn.ended)
        self.stale, self.restarts = dict(gang.ages), gang.restarts

    def _ending(self, interrupts: Interrupts, total_steps: int) -> Reason | None:
        reason = self._why(interrupts, ENDLESS)
        if reason is None and self.env_steps >= total_steps:
            return Reason.ENV_STEPS
        return reason

    @checked
    def get_training_progress(self) -> dict[str, Any]:
        """As in `MainLoop`, with how old gradients were when they arrived, in versions."""
        count = sum(self.stale.values())
        total = sum(age * n for age, n in self.stale.items())
        return {
            **super().get_training_progress(),
            "workers": self.num_workers,
            "restarts": self.restarts,
            "staleness": total / count if count else 0.0,
            "stale": dict(sorted(self.stale.items())),
        }


class Pump:
    """Brings workers' gradients to a server in a thread, until it is stopped."""

    def __init__(self, agent: Any, parameter_server: Any, num: int):
        self.server: Server = integrated(agent) if parameter_server is None else parameter_server
        self.env_steps = self.episodes = self.gradients = 0
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._error: Exception | None = None
        self._over = threading.Event()
        hand = hand_for(agent, None, agent, agreed(num, None))
        self.gang = Gang(hand, num, agent.get_policy_parameters(), self.server)
        self._thread = threading.Thread(target=self._work, name="pump", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                turn = self.gang.turn(TURN_S)
                self.gradients += turn.gradients
                self.env_steps += turn.env_steps
                self.episodes += len(turn.ended)
                self._returns.extend(episode.score for episode in turn.ended)
        except Exception as error:  # whatever it was, whoever stops this gets it
            self._error = error

    def stop(self) -> Any:
        """Ends the workers and returns the newest parameters."""
        self._over.set()
        self._thread.join()
        self.gang.close()
        if self._error is not None:
            raise self._error
        return self.server.get_parameters()

    def stats(self) -> dict[str, Any]:
        returns = list(self._returns)
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "gradients": self.gradients,
            "version": self.gang.version,
            "mean_reward": float(np.mean(returns)) if returns else float("nan"),
            "alive": self._error is None,
        }


def agreed(num_workers: int | None, num_async_workers: int | None) -> int:
    """Returns the number of workers, which has two names."""
    named = {number for number in (num_workers, num_async_workers) if number is not None}
    if len(named) > 1 or any(number < 1 for number in named):
        raise ConfigError(
            f"num_workers and num_async_workers are the same and at least 1, got {num_workers} and "
            f"{num_async_workers}; give one of them"
        )
    return named.pop() if named else WORKERS


def hand_for(
    environment: Any, replay_buffer: Any, agent: Any, num: int
) -> Callable[[int, int], Any]:
    """Returns what makes worker i of `num`, in its n-th incarnation."""
    factory = getattr(environment, "env_factory", None)
    if factory is None:
        raise ConfigError(
            f"workers make environments of their own, and a {type(environment).__name__} has no "
            "env_factory to make them with; give it one: an id, a class or a function"
        )
    if not hasattr(agent, "recipe"):
        return lambda index, incarnation: Own(agent, factory, _seed(0, index, incarnation))
    config, settings = agent.recipe.config, getattr(environment, "settings", {})
    made_from = recipe(factory, settings)
    capacity = int(getattr(replay_buffer, "capacity", config.replay.capacity))
    plain = alone(replace(config, env=made_from.config.env), capacity, num)

    def hand(index: int, incarnation: int) -> RunSetup:
        seed = _seed(config.run.seed, index, incarnation)
        return RunSetup(replace(plain, run=replace(plain.run, seed=seed)), made_from.factory)

    return hand


def alone(config: Config, capacity: int, num: int) -> Config:
    """Returns the settings of one of `num` workers: a single run without an end."""
    replay, actor = config.replay, config.actor
    warmup = max(replay.batch_size, replay.learning_starts // num)
    return replace(
        config,
        run=replace(config.run, mode=Mode.SINGLE, env_steps=ENDLESS, episodes=None, minutes=None),
        env=replace(config.env, check=False),
        actor=replace(actor, num=1, epsilon_steps=max(1, actor.epsilon_steps // num)),
        replay=replace(replay, learning_starts=warmup, capacity=max(warmup, capacity // num)),
        learner=replace(config.learner, publish_period=ENDLESS),
    )


def _seed(seed: int, index: int, incarnation: int) -> int:
    return seeding.integer(seed, Role.ACTOR, index=index, incarnation=incarnation)

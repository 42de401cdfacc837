"""SB3's `learn()` as an iterator that pauses at log, evaluation and checkpoint points.

    learning = LearnIterator(model, config)
    for counters in learning.pauses():         # None ten times a second, while SB3 learns
        learning.take_ended(); model.policy    # the model does not change during a pause
        learning.between_rollouts              # all steps are in replay: the state can be saved
    learning.over = True                   # ends `learn()` at its next step

SB3 has its own training loop with callbacks. The loop runs in a thread that blocks during a pause.
So a run of SB3 is an iterator of events like every other run, and Ctrl+C is handled at once.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rookery.config.schema import Config
from rookery.errors import LostError
from rookery.event import Activity, Counters, Episode
from rookery.report.metrics.trace import Trace
from rookery.training.run import StepInterval

POLL_S = 0.1  # seconds between two None values
PATIENCE_S = 8.0  # seconds to wait for a step of SB3 to end


class LearnIterator:
    """Runs SB3's `learn()` in a thread, which pauses at log, evaluation and checkpoint points.

    A model with a restored state continues up to `run.env_steps`, with new episodes.
    """

    def __init__(self, model: BaseAlgorithm, config: Config):
        self.model, self.config = model, config
        self.over = False
        self.episodes = 0
        self.trace = Trace("learner")
        self.between_rollouts = False  # during a pause: every env step is stored and learned from
        self.save_next = False  # pause before the next rollout
        self._ended: list[Episode] = []
        self._pauses: queue.SimpleQueue[Counters | None] = queue.SimpleQueue()
        self._resume = threading.Semaphore(0)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="sb3", daemon=True)

    @property
    def counters(self) -> Counters:
        return Counters(self.model.num_timesteps, self.model._n_updates, self.episodes)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def take_ended(self) -> tuple[Episode, ...]:
        """Returns the episodes that ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def pauses(self) -> Iterator[Counters | None]:
        """Runs SB3's `learn()` to its end; yields its step counters at each pause.

        Between pauses yields None every 0.1 seconds, so that the caller can react to signals.
        Raises LostError if `learn()` has raised an exception.
        """
        self._thread.start()
        while True:
            try:
                counters = self._pauses.get(timeout=POLL_S)
            except queue.Empty:
                yield None
                continue
            if counters is None:
                break
            yield counters
            self._resume.release()
        if self._failure is not None:
            raise _as_lost_error(self._failure, self.config)

    def close(self) -> None:
        """Ends SB3's `learn()` at its next env step, and waits up to 8 seconds for its thread."""
        self.over = True
        self._resume.release()
        if self.alive:
            self._thread.join(PATIENCE_S)

    def pause(self) -> None:
        """Blocks the thread of SB3's `learn()`, which calls it, until the iterator is advanced."""
        self._pauses.put(self.counters)
        self._resume.acquire()

    def record_episodes(self, infos: Sequence[dict[str, Any]]) -> None:
        """Records the episodes that have just ended, from the infos of SB3's `Monitor` wrapper.

        Called in the thread of `learn()`. Makes `learn()` end after `run.episodes` episodes.
        """
        for info in infos:
            if "episode" in info:
                values = _numbers(info, (*self.config.report.info_keys, "is_success"))
                self._ended.append(Episode(info["episode"]["r"], info["episode"]["l"], values))
                self.episodes += 1
        most = self.config.run.episodes
        self.over = self.over or (most is not None and self.episodes >= most)

    def _work(self) -> None:
        torch.set_num_threads(self.config.learner.threads)  # applies to this thread
        try:
            self.model.learn(
                self.config.run.env_steps - self.model.num_timesteps,
                callback=_PauseCallback(self),
                log_interval=None,  # type: ignore[arg-type]  # a log would clear the values
                reset_num_timesteps=self.model.num_timesteps == 0,
            )
        except Exception as failure:  # SB3 and a user's environment may raise anything
            self._failure = failure
        finally:
            self._pauses.put(None)


class _PauseCallback(BaseCallback):
    """SB3 callback: records episodes and times, pauses at log, evaluation and checkpoint points."""

    def __init__(self, learning: LearnIterator):
        super().__init__()
        config, done = learning.config, learning.model.num_timesteps
        self._learning = learning
        self._periods = (config.report.log_period, config.eval.period)
        self._next = self._after(done)
        self._save = StepInterval(config.checkpoint.period, done)
        self._since, self._updates = time.monotonic(), learning.model._n_updates

    def _after(self, env_steps: int) -> int:
        """Returns the env step of the next log or evaluation point."""
        return min((env_steps // period + 1) * period for period in self._periods)

    def _on_rollout_start(self) -> None:
        updates, self._updates = self._updates, self.model._n_updates
        if self._updates > updates:
            self._note(Activity.LEARN, self._updates - updates)
        if self._save.passed(self.model.num_timesteps) or self._learning.save_next:
            self._learning.between_rollouts, self._learning.save_next = True, False
            self._learning.pause()
            self._learning.between_rollouts = False
        self._since = time.monotonic()

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            self._learning.record_episodes(self.locals["infos"])
        if self.num_timesteps >= self._next:
            self._next = self._after(self.num_timesteps)
            self._note(Activity.PLAY)
            self._learning.pause()
            self._since = time.monotonic()
        return not self._learning.over

    def _on_rollout_end(self) -> None:
        self._note(Activity.PLAY)

    def _note(self, activity: Activity, amount: int = 0) -> None:
        began, self._since = self._since, time.monotonic()
        self._learning.trace.note(activity, began, self._since, amount)


def _numbers(info: dict[str, Any], keys: Sequence[str]) -> dict[str, float]:
    found = {key: info.get(key) for key in keys}
    return {
        key: float(value) for key, value in found.items() if isinstance(value, int | float | bool)
    }


def _as_lost_error(failure: Exception, config: Config) -> LostError:
    """Converts an exception of the thread of `learn()` to a `LostError`, with its traceback."""
    import traceback

    error = LostError(
        f"SB3's {config.sb3.algorithm} on {config.env.id} failed: "
        f"{type(failure).__name__}: {failure}; the traceback above says where"
    )
    error.__cause__ = failure
    error.add_note("".join(traceback.format_exception(failure)).rstrip())
    return error

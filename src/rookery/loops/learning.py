"""SB3's `learn()` as an iterator of marks.

    learning = Learning(model, config)
    for counters in learning.marks():          # a few times a second None: look around
        learning.take_ended(); model.policy    # at a mark the model stands still
        learning.over = True                   # ends it with its next step

SB3 has its own loop and calls back. It runs in a thread of its own that waits while a mark is
looked at, so that a run of SB3's is an iterator of events like any other, and Ctrl+C is heard at
once.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rookery.config.schema import Config
from rookery.errors import LostError
from rookery.event import Counters, Episode

LOOK_S = 0.1  # between two looks around
PATIENCE_S = 8.0  # for a step of SB3's to end


class Learning:
    """One call of `learn()` on its way."""

    def __init__(self, model: BaseAlgorithm, config: Config):
        self.model, self.config = model, config
        self.over = False
        self.episodes = 0
        self._ended: list[Episode] = []
        self._marks: queue.SimpleQueue[Counters | None] = queue.SimpleQueue()
        self._seen = threading.Semaphore(0)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="sb3", daemon=True)

    @property
    def counters(self) -> Counters:
        noted = self.model.logger.name_to_value
        return Counters(
            self.model.num_timesteps, int(noted.get("train/n_updates", 0)), self.episodes
        )

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def take_ended(self) -> tuple[Episode, ...]:
        """Returns the episodes that ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def marks(self) -> Iterator[Counters | None]:
        """Yields at each mark, and None now and then, until SB3 has played its steps."""
        self._thread.start()
        while True:
            try:
                counters = self._marks.get(timeout=LOOK_S)
            except queue.Empty:
                yield None
                continue
            if counters is None:
                break
            yield counters
            self._seen.release()
        if self._failure is not None:
            raise _told(self._failure, self.config)

    def close(self) -> None:
        """Ends the thread, wherever it is."""
        self.over = True
        self._seen.release()
        if self.alive:
            self._thread.join(PATIENCE_S)

    def tell(self) -> None:
        """In the thread: hands a mark over and waits until it has been looked at."""
        self._marks.put(self.counters)
        self._seen.acquire()

    def note(self, infos: Sequence[dict[str, Any]]) -> None:
        """In the thread: keeps the episodes that have just ended."""
        for info in infos:
            if "episode" in info:
                said = _numbers(info, (*self.config.report.info_keys, "is_success"))
                self._ended.append(Episode(info["episode"]["r"], info["episode"]["l"], said))
                self.episodes += 1
        most = self.config.run.episodes
        self.over = self.over or (most is not None and self.episodes >= most)

    def _work(self) -> None:
        torch.set_num_threads(self.config.learner.threads)  # of this thread
        try:
            self.model.learn(
                self.config.run.env_steps,
                callback=_Teller(self),
                log_interval=None,  # type: ignore[arg-type]  # never: it would clear what it noted
            )
        except Exception as failure:  # SB3 and a user's environment may raise anything
            self._failure = failure
        finally:
            self._marks.put(None)


class _Teller(BaseCallback):
    """Called after every env step: two comparisons, unless something happened."""

    def __init__(self, learning: Learning):
        super().__init__()
        report, judging = learning.config.report, learning.config.eval
        self._learning = learning
        self._periods = (report.log_period, judging.period)
        self._next = min(self._periods)

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            self._learning.note(self.locals["infos"])
        if self.num_timesteps >= self._next:
            self._next = min((self.num_timesteps // p + 1) * p for p in self._periods)
            self._learning.tell()
        return not self._learning.over


def _numbers(info: dict[str, Any], keys: Sequence[str]) -> dict[str, float]:
    found = {key: info.get(key) for key in keys}
    return {
        key: float(value) for key, value in found.items() if isinstance(value, int | float | bool)
    }


def _told(failure: Exception, config: Config) -> LostError:
    """Gives what came out of the thread a name, and its traceback as a note."""
    import traceback

    error = LostError(
        f"SB3's {config.sb3.algorithm} on {config.env.id} failed: "
        f"{type(failure).__name__}: {failure}; the traceback above says where"
    )
    error.__cause__ = failure
    error.add_note("".join(traceback.format_exception(failure)).rstrip())
    return error

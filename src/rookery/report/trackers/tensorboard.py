"""TensorBoard: curves over env steps, and the score over wall seconds."""

import contextlib
import threading
from pathlib import Path

from rookery.event import Evaluated, Event, Logged
from rookery.report.metrics.metric_names import evaluation

FLUSH_S = 10  # what a kill may cost


class TensorBoard:
    """Writes run_dir/tb; seconds count in a folder of their own, run_dir/tb/wall.

    TensorBoard takes back a resumed run's curves by step, for all curves of a folder at once, so
    steps of two units cannot share one. `resumed_s` is the wall second of the mark `resumed_at`.
    """

    def __init__(self, run_dir: Path, *, resumed_at: int | None, resumed_s: float):
        from torch.utils.tensorboard import SummaryWriter

        step, second = None, None
        if resumed_at is not None:
            step, second = resumed_at + 1, round(resumed_s) + 1
        place = run_dir / "tb"
        self._print_error = threading.excepthook
        threading.excepthook = self._print_unless_ours
        self._by_step = SummaryWriter(str(place), purge_step=step, flush_secs=FLUSH_S)
        self._by_second = SummaryWriter(str(place / "wall"), purge_step=second, flush_secs=FLUSH_S)

    def write(self, event: Event) -> None:
        metrics = event.metrics if isinstance(event, Logged) else {}
        if isinstance(event, Evaluated):
            metrics, name = evaluation(event), "eval/mean_reward_by_second"
            self._by_second.add_scalar(name, event.score, round(event.wall_s))
        for name, value in metrics.items():
            self._by_step.add_scalar(name, value, event.counters.env_steps)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # of two that fail, the second is closed all the same
            stack.callback(setattr, threading, "excepthook", self._print_error)
            stack.callback(self._by_second.close)
            stack.callback(self._by_step.close)

    def _print_unless_ours(self, error: threading.ExceptHookArgs) -> None:
        """Prints the error of a thread, except TensorBoard's own.

        If its thread cannot write, the next call of `write` or `close` raises the same error.
        """
        if not type(error.thread).__module__.startswith("tensorboard."):
            self._print_error(error)

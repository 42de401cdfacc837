"""Callbacks: see every event of a run, ask for a checkpoint, stop when you have seen enough.

python examples/callbacks.py
"""

import rookery
from rookery.event import Evaluated, Event, Saved


def narrate(event: Event) -> None:
    """Prints what is worth a line. Returning nothing asks for nothing."""
    if isinstance(event, Evaluated):
        print(f"env step {event.counters.env_steps}: score {event.score:.2f}")
    elif isinstance(event, Saved):
        print(f"saved {event.path}, training waited {1000 * event.stall_s:.1f} ms")


def save_each_best(event: Event) -> rookery.Ask | None:
    """Asks for a whole checkpoint whenever an evaluation beats all before it."""
    best = isinstance(event, Evaluated) and event.best
    return rookery.Ask.CHECKPOINT if best else None


class StopWhenSteady:
    """Ends the run once so many evaluations in a row have reached a score."""

    def __init__(self, score: float, times: int):
        self.score, self.times, self.in_a_row = score, times, 0

    def __call__(self, event: Event) -> rookery.Ask | None:
        if not isinstance(event, Evaluated):
            return None
        self.in_a_row = self.in_a_row + 1 if event.score >= self.score else 0
        return rookery.Ask.STOP if self.in_a_row >= self.times else None


run = rookery.train(
    "corridor",
    seed=0,
    overrides=["eval.target=null", "eval.period=500", "algo.target_period=50"],
    callbacks=[narrate, save_each_best, StopWhenSteady(0.9, times=2)],
)
print(f"stopped by {run.answer['reason']} after {run.answer['env_steps']} env steps")

"""Training: from settings to a finished run.

In the order of reading: `steps` (collect, insert, sample, learn, update priorities, publish),
`loops` (training loops made of these steps), `build` (builds actors, learner and replay), `run`
(consumes the loop's events: evaluation, checkpoints, stopping), `run_state` (content of a
checkpoint), `resources` (estimates memory and disk before training), `launch` (run folder, lock,
signals, result).
"""

from rookery.training.loops import LOOPS

__all__ = ["LOOPS"]

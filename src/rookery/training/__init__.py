"""Training: from settings to a finished run.

In the order of reading: `steps` (collect, insert, sample, learn, update priorities, publish),
`sync` and `asynchronous` (training loops made of these steps), `device_loop` (the sync loop on one
device), `build` (builds actors, learner and replay), `run` (consumes the loop's events: evaluation,
checkpoints, stopping), `run_state` (content of a checkpoint), `resources` (estimates memory and
disk before training), `launch` (run folder, lock, signals, result).
"""

from collections.abc import Callable, Iterator

from rookery.config.schema import Mode
from rookery.event import Event
from rookery.training.asynchronous import asynchronous
from rookery.training.build import Parts
from rookery.training.device_loop import on_device
from rookery.training.sync import sync

LOOPS: dict[Mode, Callable[[Parts], Iterator[Event]]] = {
    Mode.SINGLE: sync,  # with one actor, in the learner's process
    Mode.SYNC: sync,
    Mode.ASYNC: asynchronous,
    Mode.DEVICE: on_device,
}

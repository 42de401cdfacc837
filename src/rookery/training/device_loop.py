"""The training loop of device mode: environments, replay and learner are on one device.

It is the sync loop: learn as often as the rate limiter (samples per insert) allows, then step all
environments several times. The rate limiter counts steps per agent: one step of eight agents counts
as eight. Actors use the learner's own weights; weights are published only for evaluation and
checkpoints.
"""

from collections.abc import Iterator

import torch

from rookery.errors import LostError
from rookery.event import Event
from rookery.training.build import Parts
from rookery.training.sync import sync


def on_device(parts: Parts) -> Iterator[Event]:
    """Training loop of device mode: environments, replay and learner are on one device.

    Yields events without end; the caller stops it. Raises LostError with advice if the device runs
    out of memory.
    """
    try:
        yield from sync(parts)
    except torch.OutOfMemoryError as error:
        device = parts.config.device
        raise LostError(
            f"{parts.learner.device} ran out of memory; lower device.agents ({device.agents}), "
            f"device.rows ({device.rows}) or replay.batch_size "
            f"({parts.config.replay.batch_size}), and resume from the last checkpoint"
        ) from error

"""Selection of the torch device by its name in the settings."""

import torch

from rookery.errors import ConfigError


def pick_device(name: str, setting: str = "learner.device") -> torch.device:
    """Returns the torch device of this name; `auto` is the first GPU, or the CPU without one.

    Raises `ConfigError`, which names the setting, if the machine has no such GPU.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    present = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= present:
        raise ConfigError(
            f"{setting} is {name!r}, but this machine has {present} CUDA devices; use auto or cpu"
        )
    return device

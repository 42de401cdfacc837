"""What only a GPU does: graphs, bfloat16, worlds and replay there. `make gpu` runs this folder."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return torch.device("cuda:0")

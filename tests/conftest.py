import os

import pytest
import torch

from pe_utils.config import RunConfig, preset_config

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)  # more are slower on tiny tensors


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty place for runs, weights and results."""
    monkeypatch.setenv("PE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny():
    """A run of seconds; change fields with keywords."""

    def make(condition: str = "ape", seed: int = 0, **changes: object) -> RunConfig:
        small = dict(embed_dim=16, depth=2, num_heads=2, image_size=(32, 32), epochs=1)
        if condition == "untrained_ablated":
            small["epochs"] = 0
        return preset_config("smoke", condition, seed, **small | changes)

    return make

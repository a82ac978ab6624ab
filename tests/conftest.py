import io
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from pe_utils.config import PILOT_SEED, RunConfig, preset_config

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)  # more are slower on tiny tensors


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty place for runs, weights and results."""
    monkeypatch.setenv("PE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def fixed_before():
    """Check that a file was last changed before the first evidence in a table, in git's order."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    def check(criteria: str, table: str) -> None:
        if git("rev-parse", "--is-shallow-repository").strip() != "false":
            pytest.skip("without its whole history a repository does not tell")
        last = git("log", "-1", "--format=%H", "--", criteria).strip()
        for commit in git("log", "--reverse", "--topo-order", "--format=%H", "--", table).split():
            stored = git("show", f"{commit}:{table}")
            if stored and (pd.read_csv(io.StringIO(stored))["seed"] != PILOT_SEED).any():
                assert git("rev-list", f"{commit}..{last}") == "", f"{last} is after {commit}"
                assert last != commit
                return
        pytest.skip("no evidence yet")

    return check


@pytest.fixture
def tiny():
    """A run of seconds; change fields with keywords."""

    def make(condition: str = "ape", seed: int = 0, **changes: object) -> RunConfig:
        small = dict(embed_dim=16, depth=2, num_heads=2, image_size=(32, 32), epochs=1)
        if condition == "untrained_ablated":
            small["epochs"] = 0
        return preset_config("smoke", condition, seed, **small | changes)

    return make


@pytest.fixture(scope="session")
def html(tmp_path_factory):
    """Build the book once, strictly, outside the repository."""
    out = tmp_path_factory.mktemp("book")
    command = Path(sys.executable).with_name("jupyter-book")
    built = subprocess.run(
        [command, "build", "book", "--all", "-W", "--keep-going", "--path-output", str(out)],
        cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    return out / "_build" / "html"

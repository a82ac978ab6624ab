"""The Snakefile: what it would run, in a copy of the repository without results."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pe_utils.config import GRIDS, grid

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def copy(tmp_path):
    for name in ("Snakefile", "_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("pe_utils", "profiles", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    return tmp_path


def plan(folder, *options):
    """Rule to number of jobs."""
    command = [sys.executable, "-m", "snakemake", "-n", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"HOME": str(folder)})  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", done.stdout, re.M)}


@pytest.mark.parametrize("preset", GRIDS)
def test_an_empty_repository_trains_the_whole_grid_and_then_measures(copy, preset):
    jobs = plan(copy, "--config", f"preset={preset}")
    assert jobs["train"] == len(grid(preset))
    assert jobs["book"] == 1
    if "protocols" not in GRIDS[preset]:
        assert jobs["chapter"] == 9
        assert jobs["measure"] == 9 * len(GRIDS[preset]["seeds"])


def test_runs_that_are_there_are_not_trained_again(copy):
    for config in grid("smoke")[1:]:
        path = copy / "weights" / "smoke" / f"{config.run_id}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert plan(copy, "--config", "preset=smoke")["train"] == 1
    (copy / "pe_utils" / "plots.py").touch()
    assert plan(copy, "--config", "preset=smoke")["train"] == 1


def test_the_slurm_profile_plans_the_same_jobs(copy):
    options = ("--config", "preset=smoke", "--workflow-profile")
    assert plan(copy, *options, "profiles/slurm") == plan(copy, *options, "profiles/default")


def test_files_elsewhere_are_refused_before_anything_runs(copy):
    command = [sys.executable, "-m", "snakemake", "-n", "--config", "preset=smoke"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True,
                          env=os.environ | {"HOME": str(copy), "PE_HOME": "elsewhere"})  # fmt: skip
    assert done.returncode != 0
    assert "unset PE_HOME" in done.stdout + done.stderr

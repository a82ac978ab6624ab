"""Every chapter, run by papermill at preset smoke from nothing, in one home and one pass."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("*.ipynb"))
TABLES = {
    "00_scoreboard": set(),
    "01_ablated_emergence": {"ssdc"},
    "02_pe_trajectories": {"ssdc", "ssdc_per_image", "accuracy", "accuracy_rpi"},
    "03_random_permutation_training": {"ssdc", "ssdc_per_image", "accuracy", "accuracy_rpi"},
    "04_fragility": {"accuracy", "fragility"},
    "05_alpha_scaling": {"alpha", "alpha_ssdc", "rotary"},
    "06_training": {"training"},
    "07_initialisation": {"ssdc", "alpha", "alpha_ssdc"},
    "08_second_data_set": set(),
    "10_what_ssdc_measures": {"ssdc_variants"},
    "11_anchoring_and_fragility": {"snapshots"},
    "12_when_it_appears": {"snapshots"},
    "13_add_your_own_encoding": {"ssdc", "accuracy", "accuracy_rpi", "fragility"},
    "30_probe_any_vit": {"training"},
}
PAPERMILL = [sys.executable, "-m", "papermill", "--no-progress-bar"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """An empty home and a folder far from the repository to run from, shared by the chapters."""
    return tmp_path_factory.mktemp("smoke")


def run(chapter: Path, folder: Path, *parameters: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PE_HOME": str(folder / "home"), "PE_DATA": str(folder / "nowhere")}
    command = [*PAPERMILL, str(chapter), str(folder / f"{chapter.stem}.ipynb"), *parameters]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_every_chapter_is_listed_here():
    assert {c.stem for c in CHAPTERS} == set(TABLES)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.stem)
def test_a_chapter_runs_from_nothing_and_fills_its_tables(chapter, smoke):
    done = run(chapter, smoke, "-p", "preset", "smoke")
    assert done.returncode == 0, done.stderr[-3000:]
    home = smoke / "home"
    for table in TABLES[chapter.stem]:
        rows = pd.read_csv(home / "results" / "smoke" / f"{table}.csv")
        assert len(rows)
        assert np.isfinite(rows.select_dtypes("number")).all(axis=None)
        for run_id in rows["run"]:
            assert (home / "weights" / "smoke" / f"{run_id}.safetensors").exists()
            trained = not run_id.startswith("untrained")
            snapshots = list((home / "runs" / "smoke" / run_id / "snapshots").glob("*"))
            assert bool(snapshots) == trained
    notebook = nbformat.read(smoke / f"{chapter.stem}.ipynb", 4)
    shown = [key for c in notebook.cells if c.cell_type == "code"
             for o in c.outputs for key in o.get("data", {})]  # fmt: skip
    assert "image/png" in shown
    assert "text/html" in shown


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.stem)
def test_a_chapter_shows_the_committed_results_without_data(chapter, tmp_path):
    """At its defaults, with no data set anywhere, and without a change to what is committed."""
    folders = [ROOT / "results", ROOT / "weights"]
    before = {p: p.read_bytes() for folder in folders for p in folder.rglob("*.*")}
    env = os.environ | {"PE_DATA": str(tmp_path / "nowhere")}
    command = [*PAPERMILL, str(chapter), str(tmp_path / "out.ipynb")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {p: p.read_bytes() for folder in folders for p in folder.rglob("*.*")} == before


def test_a_second_run_measures_nothing_again(smoke):
    chapter = CHAPTERS[2]
    assert run(chapter, smoke, "-p", "preset", "smoke").returncode == 0
    tables = {p: p.stat().st_mtime_ns for p in (smoke / "home" / "results").rglob("*")}
    weights = {p: p.stat().st_mtime_ns for p in (smoke / "home" / "weights").rglob("*")}
    assert run(chapter, smoke, "-p", "preset", "smoke").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in (smoke / "home" / "results").rglob("*")} == tables
    assert {p: p.stat().st_mtime_ns for p in (smoke / "home" / "weights").rglob("*")} == weights


def test_measuring_again_from_the_weights_gives_the_same_numbers(smoke):
    """A stored number that is wrong is found; the stored tables stay as they are."""
    command = [sys.executable, "-m", "pe_utils.remeasure", "04_fragility",
               "-y", "{preset: smoke, seeds: [1], corruptions: [jpeg_q5]}"]  # fmt: skip
    env = os.environ | {"PE_HOME": str(smoke / "home")}
    path = smoke / "home" / "results" / "smoke" / "fragility.csv"
    stored = path.read_bytes()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fragility.csv: 5 rows, 5 equal to the last bit" in done.stdout
    assert path.read_bytes() == stored
    rows = pd.read_csv(path)
    rows.loc[rows["corruption"] == "jpeg_q5", "shifted_accuracy"] += 0.01
    rows.to_csv(path, index=False)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    path.write_bytes(stored)
    assert done.returncode == 1
    assert "fragility.csv: 5 rows, 0 equal to the last bit, largest difference 1.0e-02" in (
        done.stdout
    )


def test_other_parameters_add_rows_of_their_own(smoke):
    chapter = ROOT / "book" / "chapters" / "02_pe_trajectories.ipynb"
    options = ("-y", "{preset: smoke, seeds: [1, 2, 3], n_images: 20, n_orders: 3, order_seed: 5}")
    done = run(chapter, smoke, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = pd.read_csv(smoke / "home" / "results" / "smoke" / "ssdc.csv")
    new = rows.query("images == 20 and intervention == 'rpi'")
    assert set(new["seed"]) == {1, 2, 3}
    assert set(new["orders"]) == {3}
    assert set(new["order_seed"]) == {5}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (["-p", "presett", "smoke"], "did you mean 'preset'"),
        (["-p", "preset", "laptp"], "unknown preset 'laptp'; choose one of smoke, laptop"),
        (["-p", "preset", "smoke", "-p", "n_images", "many"], "n_images='many' must be int | None"),
        (["-p", "preset", "own"], "no image_folder images: looked for"),
    ],
)
def test_a_wrong_parameter_stops_before_any_work(parameters, message, tmp_path):
    done = run(CHAPTERS[2], tmp_path, *parameters)
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / "home").exists()

import json
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest

from pe_utils import results
from pe_utils.config import preset_config
from pe_utils.data import load
from pe_utils.train import train

PHOTOS = load("photos", (32, 32))


@pytest.fixture
def run(home, tiny):
    config = tiny("ape")
    train(config, PHOTOS)
    return config


def test_rows_of_a_run_and_its_settings_come_back_exactly(run):
    rows = [{"depth": d, "ssdc": 0.1 + d / 3} for d in range(3)]
    assert results.missing("ssdc", [run], images=10) == [run]
    results.add("ssdc", run, rows, images=10)
    results.add("ssdc", run, [{"depth": 0, "ssdc": 0.9}], images=20)
    assert results.missing("ssdc", [run], images=10) == []
    assert results.missing("ssdc", [run], images=30) == [run]
    back = results.read("ssdc", [run], images=10)
    assert back["ssdc"].tolist() == [r["ssdc"] for r in rows]
    assert back["run"].tolist() == [run.run_id] * 3
    assert results.read("ssdc", [run], images=20)["ssdc"].tolist() == [0.9]


def test_measuring_again_replaces_and_the_order_of_adding_leaves_no_trace(run, tiny):
    other = tiny("ablated")
    train(other, PHOTOS)
    path = results.folder("smoke") / "accuracy.csv"
    for config in (run, other):
        results.add("accuracy", config, [{"accuracy": 0.5}], images=10)
    first = path.read_bytes()
    path.unlink()
    for config in (other, run):
        results.add("accuracy", config, [{"accuracy": 0.1}], images=10)
        results.add("accuracy", config, [{"accuracy": 0.5}], images=10)
    assert path.read_bytes() == first


def test_the_manifest_says_where_every_row_comes_from(run):
    results.add("accuracy", run, [{"accuracy": 0.5}], images=10)
    manifest = json.loads((results.folder("smoke") / "manifest.json").read_text())
    entry = manifest["runs"][run.run_id]
    assert manifest["data"]["digest"] == PHOTOS.digest
    assert entry["config"]["embed_dim"] == 16
    assert len(entry["sha256"]) == 64
    assert set(entry["measured"]) == {"accuracy", "training"}
    assert entry["measured"]["accuracy"]["code"] == results.code_version()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows to store"),
        ([{"accuracy": float("nan")}], "missing or infinite in accuracy"),
        ([{"accuracy": float("inf")}], "missing or infinite"),
        ([{"accuracy": 0.5, "more": 1}], "has columns"),
    ],
)
def test_bad_rows_change_nothing(run, rows, message):
    results.add("accuracy", run, [{"accuracy": 0.5}], images=10)
    before = (results.folder("smoke") / "accuracy.csv").read_bytes()
    with pytest.raises(ValueError, match=message):
        results.add("accuracy", run, rows, images=10)
    assert (results.folder("smoke") / "accuracy.csv").read_bytes() == before


def test_runs_of_two_presets_are_not_looked_up_in_one_table(run):
    configs = [run, preset_config("laptop", "ape", 1)]
    with pytest.raises(ValueError, match=r"one preset at a time, not of \['laptop', 'smoke'\]"):
        results.missing("accuracy", configs)


def test_results_of_other_data_do_not_mix_and_nothing_is_trained_for_them(run, tiny, monkeypatch):
    other, data = tiny("ablated"), replace(PHOTOS, digest="0123")
    with pytest.raises(ValueError, match="results/smoke stands on photos skimage-photos, but"):
        train(other, data)
    assert not other.run_dir.exists()
    here = other.weights_path
    monkeypatch.setenv("PE_HOME", str(here.parents[2] / "elsewhere"))
    train(other, data)
    weights = other.weights_path.read_bytes()
    monkeypatch.setenv("PE_HOME", str(here.parents[2]))
    here.write_bytes(weights)
    with pytest.raises(ValueError, match="results/smoke stands on"):
        results.add("accuracy", other, [{"accuracy": 0.5}], images=10)


def test_rows_are_never_handed_to_other_weights(run, tiny):
    results.add("accuracy", run, [{"accuracy": 0.5}], images=10)
    run.weights_path.unlink()
    train(tiny("ape", lr=0.1), PHOTOS)
    run.weights_path.write_bytes(tiny("ape", lr=0.1).weights_path.read_bytes())
    with pytest.raises(ValueError, match=r"the rows of ape-seed0-\w+ stand on weights \w+, but"):
        results.add("accuracy", run, [{"accuracy": 0.6}], images=20)


def test_only_finished_runs_have_results(home, tiny):
    with pytest.raises(FileNotFoundError, match="train it first"):
        results.add("accuracy", tiny(), [{"accuracy": 0.5}], images=10)
    with pytest.raises(ValueError, match=r"accuracy\.csv has no row of ape-seed0"):
        results.read("accuracy", [tiny()], images=10)


def test_processes_that_write_at_once_lose_no_row(run):
    script = (
        "import sys; from pe_utils import results; "
        "from pe_utils.config import preset_config; "
        "config = preset_config('smoke', 'ape', 0, embed_dim=16, depth=2, num_heads=2, epochs=1); "
        "[results.add('accuracy', config, [{'accuracy': 0.5}], images=int(sys.argv[1]) + i) "
        "for i in range(10)]"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(10 * i)]) for i in (1, 2)]
    assert [p.wait() for p in processes] == [0, 0]
    table = pd.read_csv(results.folder("smoke") / "accuracy.csv")
    assert sorted(table["images"]) == list(range(10, 30))


def test_the_published_values_are_the_papers():
    values = results.published()["arxiv_2606_00124"]
    assert values["accuracy_and_fragility"]["rope"][2] == 0.2988
    assert len(values["ssdc_rpi"]["ape"]["mean"]) == 12

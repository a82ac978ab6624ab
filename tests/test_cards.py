import subprocess

import pytest

from pe_utils import cards, results
from pe_utils.config import ROOT, preset_config
from pe_utils.data import load
from pe_utils.train import load_model, train


@pytest.mark.parametrize("folder", sorted((ROOT / "weights").iterdir()), ids=lambda p: p.name)
def test_committed_cards_are_what_the_command_writes(folder):
    listed = subprocess.run(["git", "ls-files", str(folder)], cwd=ROOT, capture_output=True)
    if not listed.stdout:
        pytest.skip("not committed")
    assert (folder / "README.md").read_text(encoding="utf-8") == cards.card(folder.name)


def test_a_card_lists_every_run_with_what_sets_it_apart(home, tiny):
    photos = load("photos", (32, 32))
    for config in (tiny("rpt", 2, init="timm"), tiny("ape", 1)):
        train(config, photos)
    results.add("accuracy", tiny("ape", 1), [{"accuracy": 0.25}], images=240)
    cards.main()
    text = (home / "weights" / "smoke" / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| ape", "| rpt"))]
    assert [row.split(" | ")[1] for row in rows] == ["ape", "rpt"]
    assert "| 0.2500 |" in rows[0]
    assert "init timm" in rows[1]
    assert "init" not in rows[0]
    assert "embed_dim 16" in rows[0]
    assert f"digest `{photos.digest}`" in text


@pytest.mark.parametrize("folder", sorted((ROOT / "weights").iterdir()), ids=lambda p: p.name)
def test_the_line_of_the_card_loads_a_model(folder):
    if not results.manifest(folder.name)["runs"]:
        pytest.skip("no results")
    text = cards.card(folder.name)
    line = next(li for li in text.splitlines() if li.startswith("model = "))
    names = {"load_model": load_model, "preset_config": preset_config}
    assert not eval(line.removeprefix("model = "), names).training

import subprocess
import sys

import pytest

from pe_utils.config import GRIDS, PRESETS, preset_config
from pe_utils.cost import SIZES, cost
from pe_utils.data import HELD_OUT, load


def test_every_grid_has_data_of_a_known_size():
    assert {PRESETS[preset]["dataset"] for preset in GRIDS} <= set(SIZES)
    photos = load("photos", (32, 32))
    assert SIZES["photos"] == (len(photos.train) + len(photos.held_out), len(photos.test))


def test_the_cost_of_a_run_is_that_of_its_model(home):
    config = preset_config("smoke", "ape", 0, precision="float32")
    one = cost(config)
    assert one["images"] == 2 * 540
    tokens, dim, patches = 17, 32, 16
    block = 12 * dim**2 * tokens + 2 * dim * tokens**2  # multiplications, MLP ratio 4
    forward = 2 * (3 * block + patches * 3 * 64 * dim + dim * 6)
    assert one["flops"] == pytest.approx(3 * forward * one["images"], rel=0.05)
    assert one["hours"] * 3600 == pytest.approx(one["images"] / one["images_per_second"])
    assert one["data_bytes"] == 3 * 32 * 32 * 840
    assert round((1 - HELD_OUT) * 600) == 540
    twice = cost(preset_config("smoke", "ape", 0, precision="float32", epochs=4))
    assert twice["flops"] == 2 * one["flops"]
    assert not home.exists()  # nothing is stored


def test_the_command_says_what_a_grid_costs(home):
    command = [sys.executable, "-m", "pe_utils.cost", "--preset", "smoke"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = [["ablated", "baseline"], ["ape", "baseline"], ["spe", "baseline"],
             ["rope", "baseline"], ["rpt", "baseline"]]  # fmt: skip
    assert [line.split()[:2] for line in said[1:6]] == kinds
    assert said[6].startswith("training 5 runs: 0.0 hours")
    assert said[7].startswith("disk: 0.00 GB of decoded images")

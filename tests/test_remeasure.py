import pandas as pd
import pytest

from pe_utils.config import ROOT
from pe_utils.remeasure import NOT, differences


def rows(values, alphas=(0.2, 0.3), run="ape-seed1"):
    return pd.DataFrame({"run": run, "alpha": alphas, "images": 9, "fragility": values})


def test_a_row_is_held_against_its_own_setting_and_not_the_nearest():
    gaps = differences(rows([0.5, 0.1]), rows([0.1, 0.5]))
    assert gaps.tolist() == pytest.approx([0.4, 0.4])
    assert differences(rows([0.5, 0.1]), rows([0.5, 0.1])).tolist() == [0, 0]


@pytest.mark.parametrize(
    "stored",
    [rows([0.5, 0.1], run="ape-seed2"), rows([0.5, 0.1], (0.2, 0.4)), rows([0.5, float("nan")])],
    ids=["another run", "another alpha", "no value"],
)
def test_a_row_without_counterpart_is_infinitely_far(stored):
    assert differences(rows([0.5, 0.1]), stored).tolist()[1] == float("inf")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda p: p.stem)
def test_what_measures_final_weights_can_be_measured_again(path):
    text = path.read_text()
    measures = "results.add(" in text and "load_snapshots" not in text
    assert measures != path.stem.startswith(NOT)

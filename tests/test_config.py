from dataclasses import replace

import pytest

from pe_utils.config import CONDITIONS, FACTORIAL, GRIDS, IMAGES, PRESETS, grid, preset_config


def test_equal_configs_are_one_run_and_the_preset_is_only_a_label():
    a = preset_config("laptop", "rope", 3)
    b = replace(a, preset="elsewhere")
    assert a == b
    assert a.run_id == b.run_id
    assert a.weights_path != b.weights_path


@pytest.mark.parametrize("change", [{"seed": 4}, {"init": "timm"}, {"epochs": 3}, {"lr": 2e-3}])
def test_any_other_field_is_another_run(change):
    a = preset_config("laptop", "ape", 3)
    assert replace(a, **change).run_id != a.run_id


def test_the_id_of_a_committed_run_does_not_move():
    """Weights and result rows carry it: a new field needs a default that leaves it alone."""
    assert preset_config("laptop", "ape", 0, epochs=15).run_id == "ape-seed0-c44a8813"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_preset_describes_every_condition(preset, condition):
    assert preset_config(preset, condition, 0).condition == condition


@pytest.mark.parametrize(
    ("condition", "change", "message"),
    [
        ("RoPE", {}, "unknown condition 'RoPE'; choose one of ablated"),
        ("ape", {"patch_size": 5}, r"multiples of the patch size 5, not \(32, 32\)"),
        ("rope", {"num_heads": 16}, "head dimension divisible by 4"),
        ("ape", {"num_heads": 5}, "5 heads do not divide embed_dim 96"),
        ("spe", {"embed_dim": 6, "num_heads": 3}, "spe needs embed_dim divisible by 4"),
        ("ape", {"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ("untrained_ablated", {"epochs": 2}, "epochs must be 0, not 2"),
        ("ape", {"seed": -1}, "seed must be"),
        ("ape", {"seed": True}, "seed must be"),
        ("ape", {"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ("ape", {"lr": float("nan")}, "lr must be positive, not nan"),
        ("ape", {"init": "xavier"}, "unknown init"),
        ("ape", {"heads": 3}, r"no field \['heads'\]"),
    ],
)
def test_wrong_values_are_named(condition, change, message):
    with pytest.raises(ValueError, match=message):
        preset_config("laptop", condition, **{"seed": 0} | change)


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown preset 'laptp'; choose one of smoke, laptop"):
        preset_config("laptp", "ape", 0)


def test_a_grid_holds_every_run_of_its_preset_once_seeds_outermost():
    configs = grid("locality_tiny")
    assert len({c.run_id for c in configs}) == len(configs) == 16
    assert [c.seed for c in configs] == [1] * 8 + [2] * 8
    assert {c.protocol for c in configs[:8]} == {*FACTORIAL}
    assert {c.protocol for c in grid("locality_laptop")} == {"baseline", "modern"}
    assert [c.seed for c in grid("laptop")][::6] == [1, 2, 3, 4]  # the pilot is no evidence
    with pytest.raises(ValueError, match="unknown preset with a grid 'own'"):
        grid("own")


def test_a_whole_number_and_the_same_float_are_one_run():
    a, b = (preset_config("smoke", "ape", 0, rope_temperature=t) for t in (100, 100.0))
    assert a == b
    assert a.run_id == b.run_id
    assert preset_config("locality_laptop", "ape", 0, mlp_ratio=2).run_id == (
        preset_config("locality_laptop", "ape", 0).run_id
    )
    with pytest.raises(ValueError, match="lr must be a number, not True"):
        preset_config("smoke", "ape", 0, lr=True)


def test_every_preset_says_how_many_images_it_is_measured_on():
    assert {*GRIDS} <= {*PRESETS} == {*IMAGES}

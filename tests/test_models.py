import pytest
import torch

from pe_utils import config
from pe_utils.config import CONDITIONS, preset_config
from pe_utils.interventions import permute_tokens
from pe_utils.models import build_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("init", ["published", "timm"])
def test_conditions_of_a_seed_share_every_weight_but_the_table(tiny, init):
    reference = build_vit(tiny("ablated", init=init)).state_dict()
    for condition in CONDITIONS:
        weights = build_vit(tiny(condition, init=init)).state_dict()
        weights.pop("pos_embed", None)
        assert weights.keys() == reference.keys()
        assert all(torch.equal(weights[name], reference[name]) for name in reference), condition


def test_seeds_differ_and_building_leaves_the_global_generator_alone(tiny):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    a, b = build_vit(tiny(seed=0)), build_vit(tiny(seed=1))
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(a.pos_embed, b.pos_embed)
    assert not torch.equal(a.head.weight, b.head.weight)


def test_published_init_is_pytorchs_and_the_table_is_standard_normal(tiny):
    model = build_vit(tiny("ape", embed_dim=128, num_heads=4))
    assert model.pos_embed.std().item() == pytest.approx(1, abs=0.1)
    weight = model.blocks[1].mlp.fc1.weight
    assert weight.abs().max().item() == pytest.approx(128**-0.5, rel=0.01)  # uniform
    assert model.blocks[0].attn.v_bias.abs().max() > 0.5 * 128**-0.5
    assert isinstance(model.norm, torch.nn.Identity)  # nothing before the head
    small = build_vit(tiny("ape", embed_dim=128, num_heads=4, init="timm"))
    assert small.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_table_is_not_the_stream_the_weights_come_from(tiny):
    model = build_vit(tiny("ape", init="timm"))
    torch.manual_seed(0)
    same_stream = torch.nn.init.trunc_normal_(torch.empty_like(model.pos_embed), std=0.02)
    assert not torch.allclose(model.pos_embed, same_stream)


def test_sinusoidal_rows_are_distinct_fixed_and_only_the_class_row_learns(tiny):
    model = build_vit(tiny("spe")).train()
    before = model.pos_embed.detach().clone()
    rows = before[0, 1:]
    assert rows.square().mean().item() == pytest.approx(0.5)
    assert torch.cdist(rows, rows).fill_diagonal_(1).min() > 0.1
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0)
    model(IMAGES).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.pos_embed[0, 1:], before[0, 1:])
    assert not torch.equal(model.pos_embed[0, 0], before[0, 0])


@torch.inference_mode()
def test_only_models_without_positions_ignore_the_order_of_patches(tiny):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    for condition in CONDITIONS:
        model = build_vit(tiny(condition)).eval()
        with permute_tokens(model, order):
            shuffled = model(IMAGES)
        blind = condition in ("ablated", "untrained_ablated")
        assert torch.allclose(shuffled, model(IMAGES), atol=1e-5) == blind, condition


@torch.inference_mode()
def test_rope_rotates_by_whole_grid_steps_and_not_the_class_token(tiny):
    """One step down and one step right turn the first pair of each axis by one radian."""
    model = build_vit(tiny("rope", embed_dim=32, num_heads=2))
    sin, cos = model.rope.get_embed().chunk(2, dim=-1)
    angles = torch.atan2(sin, cos)  # (patches, head_dim): two axes, pairs of channels
    assert angles[5, 0].item() == pytest.approx(1)  # patch 5 = row 1, column 1
    assert angles[4, 8].item() == pytest.approx(0)  # patch 4 = row 1, column 0
    assert angles[1, 8].item() == pytest.approx(1)
    assert len(sin) == 16  # no row for the class token


def test_a_grid_need_not_be_square(tiny):
    for condition in CONDITIONS:
        model = build_vit(tiny(condition, image_size=(16, 48))).eval()
        assert model.patch_embed.grid_size == (2, 6)
        assert model(torch.zeros(1, 3, 16, 48)).shape == (1, 6)


def test_no_dropout_after_the_attention_projection(tiny):
    model = build_vit(tiny(dropout=0.15, drop_path=0.2))
    block = model.blocks[1]
    assert (block.attn.proj_drop.p, block.attn.attn_drop.p) == (0.0, 0.15)
    assert block.mlp.drop1.p == model.pos_drop.p == 0.15
    assert block.drop_path1.drop_prob == pytest.approx(0.2)


def test_a_condition_without_an_encoding_is_refused_and_not_trained_as_ablated(monkeypatch):
    monkeypatch.setattr(config, "EXTENSIONS", ("alibi",))
    with pytest.raises(ValueError, match="no encoding for the condition 'alibi'"):
        build_vit(preset_config("smoke", "alibi", 1))


@pytest.mark.parametrize(
    ("condition", "init", "size"),
    [("ape", "published", 34993.241), ("rope", "published", 30006.182), ("spe", "timm", 12932.967)],
)
def test_a_run_starts_from_the_weights_it_started_from(condition, init, size):
    """Sums that another torch or timm may change: then no run of the book can be trained again."""
    model = build_vit(preset_config("laptop", condition, 1, init=init))
    total = sum(weight.detach().double().abs().sum() for weight in model.parameters())
    assert float(total) == pytest.approx(size, abs=1e-3)

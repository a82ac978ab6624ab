from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from timm.layers import HybridEmbed, RotaryEmbedding
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos

from pe_utils.families import patch_tokens
from pe_utils.interventions import (
    permute_tokens,
    position_kinds,
    scale_kind,
    scale_position_bias,
    scale_positions,
    scale_rotary_angles,
)

GRID, PATCH = (2, 3), 4
PATCHES = GRID[0] * GRID[1]
SIZES = dict(
    img_size=(GRID[0] * PATCH, GRID[1] * PATCH),
    patch_size=PATCH,
    embed_dim=16,
    depth=2,
    num_heads=2,
    num_classes=5,
)

eva = partial(Eva, **SIZES, use_abs_pos_emb=False)
vit = partial(VisionTransformer, **SIZES)
beit = partial(Beit, **SIZES, use_abs_pos_emb=False)
relpos = partial(VisionTransformerRelPos, **SIZES, init_values=None)


def naflex(**fields):
    config = NaFlexVitCfg(patch_size=PATCH, embed_dim=16, depth=2, num_heads=2, **fields)
    return NaFlexVit(config, num_classes=5, img_size=SIZES["img_size"])


MODELS = {
    "ablated": eva,
    "ape": partial(eva, use_abs_pos_emb=True),
    "rope": partial(eva, use_rot_pos_emb=True),
    "dynamic": partial(eva, use_abs_pos_emb=True, use_rot_pos_emb=True, dynamic_img_size=True),
    "vit": vit,
    "vit_dynamic": partial(vit, dynamic_img_size=True, reg_tokens=2),
    "vit_ablated": partial(vit, pos_embed="none"),
    "relative": partial(beit, use_rel_pos_bias=True),
    "shared_relative": partial(beit, use_shared_rel_pos_bias=True),
    "mixed": partial(eva, use_rot_pos_emb=True, rope_type="mixed"),
    "mixed_ape": partial(eva, use_abs_pos_emb=True, use_rot_pos_emb=True, rope_type="mixed"),
    "dinov3": partial(eva, use_rot_pos_emb=True, rope_type="dinov3"),
    "dinov3_dynamic": partial(eva, use_rot_pos_emb=True, rope_type="dinov3", dynamic_img_size=True),
    "relpos": partial(relpos, rel_pos_type="bias", class_token=True),
    "relpos_mlp": partial(relpos, rel_pos_type="mlp"),
    "relpos_shared": partial(relpos, rel_pos_type="bias", shared_rel_pos=True),
    "naflex": partial(naflex, pos_embed="learned", class_token=True, global_pool="token"),
    "naflex_factorized": partial(naflex, pos_embed="factorized", reg_tokens=2),
    "naflex_rope": partial(naflex, pos_embed="none", rope_type="axial"),
}
KINDS = {  # every kind of position a model has
    "table": ("ape", "dynamic", "vit", "vit_dynamic", "mixed_ape", "naflex", "naflex_factorized"),
    "rotary": ("rope", "dynamic", "mixed", "mixed_ape", "dinov3", "dinov3_dynamic", "naflex_rope"),
    "bias": ("relative", "shared_relative", "relpos", "relpos_mlp", "relpos_shared"),
}
NO_POSITIONS = ("ablated", "vit_ablated")
ONLY_A_TABLE = ("ape", "vit", "vit_dynamic")


def build(make):
    """In float64, where rounding cannot hide or feign a difference."""
    torch.manual_seed(0)
    model = make().double().eval()
    for weight in model.parameters():  # at timm's small init every encoding looks inert
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)
    return model


@pytest.fixture(params=MODELS)
def model(request):
    return build(MODELS[request.param])


@pytest.fixture
def images():
    return torch.randn(3, 3, *SIZES["img_size"], generator=seeded(0), dtype=torch.float64)


@pytest.fixture
def orders():
    """(images, patches), the rows all different and none its own inverse."""
    orders = torch.tensor([[1, 2, 0, 4, 5, 3], [5, 0, 1, 2, 3, 4], [3, 4, 5, 1, 2, 0]])
    assert all((order[order] != torch.arange(PATCHES)).any() for order in orders)
    return orders


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def shuffle_pixels(images, orders):
    """Move whole patches of the image: place i receives patch orders[image, i]."""
    moved = torch.empty_like(images)
    for image, order in enumerate(orders):
        for slot, source in enumerate(order):
            (r, c), (r2, c2) = divmod(slot, GRID[1]), divmod(int(source), GRID[1])
            moved[image, :, r * PATCH : (r + 1) * PATCH, c * PATCH : (c + 1) * PATCH] = images[
                image, :, r2 * PATCH : (r2 + 1) * PATCH, c2 * PATCH : (c2 + 1) * PATCH
            ]
    return moved


def close(a, b):
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)


# permute_tokens


@torch.inference_mode()
def test_permuting_tokens_is_moving_patches_of_the_image(model, images, orders):
    with permute_tokens(model, orders[0]):
        permuted = model(images)
    assert close(permuted, model(shuffle_pixels(images, orders[:1].expand(3, -1))))


@torch.inference_mode()
def test_one_order_for_each_image(model, images, orders):
    with permute_tokens(model, orders):
        permuted = model(images)
    assert close(permuted, model(shuffle_pixels(images, orders)))


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_only_a_model_without_positions_ignores_the_order(name, images, orders):
    model = build(MODELS[name])
    with permute_tokens(model, orders[0]):
        permuted = model(images)
    difference = (permuted - model(images)).abs().max()
    assert difference < 1e-9 if name in NO_POSITIONS else difference > 1e-2


@torch.inference_mode()
def test_nested_orders_compose_from_the_outside_in(model, images, orders):
    outer, inner = orders[0], orders[1]
    with permute_tokens(model, outer), permute_tokens(model, inner):
        nested = model(images)
    with permute_tokens(model, outer[inner]):
        assert torch.equal(model(images), nested)
    assert not torch.equal(outer[inner], inner[outer])


@torch.inference_mode()
def test_permuting_leaves_no_trace(model, images, orders):
    before = model(images)
    with permute_tokens(model, orders[0]):
        pass
    assert torch.equal(model(images), before)
    with pytest.raises(RuntimeError, match="body"), permute_tokens(model, orders[0]):
        raise RuntimeError("body")
    assert torch.equal(model(images), before)
    assert not patch_tokens(model)._forward_hooks


@torch.inference_mode()
def test_orders_of_other_integers_and_from_numpy(images, orders):
    model = build(MODELS["ape"])
    with permute_tokens(model, orders[0]):
        expected = model(images)
    read_only = orders[0].numpy().copy()
    read_only.setflags(write=False)
    backwards = orders[0].flip(0).numpy()[::-1]
    for order in (read_only, backwards, orders[0].numpy().astype(np.int32), orders[0].byte()):
        with permute_tokens(model, order):
            assert torch.equal(model(images), expected)


@torch.inference_mode()
def test_changing_the_order_afterwards_changes_nothing(images, orders):
    model = build(MODELS["ape"])
    for order in (orders[0], orders[0].numpy()):
        with permute_tokens(model, order):
            expected = model(images)
            order[:] = 0
            assert torch.equal(model(images), expected)
            order[:] = orders[1] if torch.is_tensor(order) else orders[1].numpy()


def test_gradients_follow_the_moved_patches(images, orders):
    model = build(MODELS["rope"])
    images.requires_grad_()
    with permute_tokens(model, orders):
        permuted = torch.autograd.grad(model(images)[:, 0].sum(), images)[0]
    moved = shuffle_pixels(images.detach(), orders).requires_grad_()
    gradient = torch.autograd.grad(model(moved)[:, 0].sum(), moved)[0]
    assert close(shuffle_pixels(permuted, orders), gradient)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (torch.tensor([0, 1, 2, 3, 4, 4]), r"not a permutation of range\(6\)$"),
        (torch.tensor([1, 2, 3, 4, 5, 6]), "not a permutation"),
        (torch.tensor([0, 1, 2, 3, 4, -1]), "not a permutation"),
        (np.array([[0, 1, 2], [0, 1, 1]]), r"not a permutation of range\(3\) in row 1"),
        (torch.arange(6.0), "integers, not torch.float32"),
        (torch.arange(6).bfloat16(), "integers, not torch.bfloat16"),
        (np.arange(6.0), "integers, not torch.float64"),
        (np.ones(6, dtype=bool), "integers, not torch.bool"),
        (torch.arange(6).reshape(1, 1, 6), r"not of shape \(1, 1, 6\)"),
        (torch.tensor(0), r"not of shape \(\)"),
    ],
)
def test_bad_orders_are_refused_on_entering(order, message):
    model = build(MODELS["ape"])
    with pytest.raises(ValueError, match=message), permute_tokens(model, order):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5,), "6 patches but order has 5 entries"),
        ((3, 7), "6 patches but order has 7 entries"),
        ((2, 6), "3 images but order has 2 rows"),
        ((1, 6), "3 images but order has 1 rows"),
    ],
)
@pytest.mark.parametrize("name", ["ape", "vit_dynamic"])
def test_orders_that_do_not_fit_are_refused_on_running(name, shape, message, images):
    model = build(MODELS[name])
    order = torch.arange(shape[-1]).expand(shape)
    with pytest.raises(ValueError, match=message), permute_tokens(model, order):
        model(images)
    model(images)


def swin():
    return SwinTransformer(img_size=32, patch_size=4, embed_dim=8, depths=(1,), num_heads=(1,))


def test_other_families_are_refused_by_name():
    for intervene in (
        partial(permute_tokens, order=torch.arange(64)),
        partial(scale_positions, alpha=0.5),
    ):
        with pytest.raises(ValueError, match="SwinTransformer is not"), intervene(swin()):
            pytest.fail("entered")


def test_hybrids_are_refused_by_name():
    stem = torch.nn.Conv2d(3, 8, kernel_size=4, stride=4)
    hybrid = VisionTransformer(
        img_size=8, patch_size=1, embed_dim=16, depth=1, num_heads=2,
        embed_layer=partial(HybridEmbed, backbone=stem),
    )  # fmt: skip
    order = torch.arange(4)
    with pytest.raises(ValueError, match="HybridEmbed"), permute_tokens(hybrid, order):
        pytest.fail("entered")


# scale_positions


@pytest.fixture(params=ONLY_A_TABLE)
def additive(request):
    return build(MODELS[request.param])


@torch.inference_mode()
def test_alpha_1_changes_no_bit(additive, images):
    before = additive(images)
    with scale_positions(additive, 1):
        assert torch.equal(additive(images), before)


@torch.inference_mode()
def test_alpha_0_leaves_no_position(additive, images, orders):
    with scale_positions(additive, 0):
        expected = additive(images)
        assert additive.pos_embed.count_nonzero() == 0
        with permute_tokens(additive, orders):
            assert close(additive(images), expected)


@torch.inference_mode()
def test_alpha_scales_the_class_token_too(images):
    model = build(MODELS["ape"])
    table = model.pos_embed.detach().clone()
    assert table.shape[1] == PATCHES + 1
    with scale_positions(model, 0.25):
        assert torch.equal(model.pos_embed, table * 0.25)
        scaled = model(images)
    model.pos_embed.data[:, 1:] *= 0.25
    assert not torch.allclose(model(images), scaled)  # not the patches' rows only
    model.pos_embed.data[:, :1] *= 0.25
    assert torch.equal(model(images), scaled)


def test_nested_alphas_multiply_and_unwind(additive):
    table = additive.pos_embed.detach().clone()
    with scale_positions(additive, 0.5):
        with scale_positions(additive, 0.5):
            assert torch.equal(additive.pos_embed, table * 0.25)
        assert torch.equal(additive.pos_embed, table * 0.5)
    assert torch.equal(additive.pos_embed, table)


@pytest.mark.parametrize("alpha", [0, 0.3, 1])
@pytest.mark.parametrize("trained", [True, False])
def test_scaling_leaves_no_trace_also_when_the_body_fails(additive, images, alpha, trained):
    parameter = additive.pos_embed.requires_grad_(trained)
    table, before = parameter.detach().clone(), additive(images).detach()
    with scale_positions(additive, alpha):
        assert additive.pos_embed is parameter
        assert parameter.requires_grad == trained
    assert torch.equal(parameter, table)
    with pytest.raises(RuntimeError, match="body"), scale_positions(additive, alpha):
        raise RuntimeError("body")
    assert additive.pos_embed is parameter
    assert parameter.requires_grad == trained
    assert torch.equal(parameter, table)
    assert torch.equal(additive(images), before)
    additive(images).sum().backward()
    assert (parameter.grad is not None) == trained


def test_scaling_under_inference_mode_leaves_a_trainable_table(images):
    model = build(MODELS["ape"])
    table = model.pos_embed.detach().clone()
    with torch.inference_mode(), scale_positions(model, 0.5):
        model(images)
    assert torch.equal(model.pos_embed, table)
    model(images).sum().backward()
    assert model.pos_embed.grad is not None


@pytest.mark.parametrize("alpha", [-0.1, 1.0001, float("nan"), float("inf")])
def test_alpha_outside_0_to_1_is_refused(alpha):
    model = build(MODELS["ape"])
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\]"):
        scale_positions(model, alpha).__enter__()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ablated", "Eva has no additive position table"),
        ("vit_ablated", "VisionTransformer has no additive position table"),
        ("rope", "rotary; alpha is not defined for RoPE in the paper"),
        ("dynamic", "rotary besides its table; alpha is not defined for RoPE"),
        ("relative", "Beit has a relative position bias; alpha is defined for a table alone"),
    ],
)
def test_scaling_refuses_models_without_a_table_or_with_more(name, message):
    model = build(MODELS[name])
    with pytest.raises(ValueError, match=message), scale_positions(model, 0.5):
        pytest.fail("entered")


@pytest.mark.parametrize("bias", ["use_rel_pos_bias", "use_shared_rel_pos_bias"])
def test_scaling_refuses_a_bias_beside_the_table(bias):
    model = build(partial(beit, use_abs_pos_emb=True, **{bias: True}))
    with pytest.raises(ValueError, match="relative position bias"), scale_positions(model, 0.5):
        pytest.fail("entered")


def test_scaling_takes_a_beit_with_a_table_only():
    model = build(partial(beit, use_abs_pos_emb=True))
    table = model.pos_embed.detach().clone()
    with scale_positions(model, 0.5):
        assert torch.equal(model.pos_embed, table * 0.5)


@pytest.mark.parametrize("name", ["rope", "dynamic"])
def test_full_angles_change_no_bit_and_no_angles_are_no_rope(name, images):
    model = build(MODELS[name])
    before, bands = model(images), model.rope.bands.clone()
    with scale_rotary_angles(model, 1.0):
        assert torch.equal(model(images), before)
    without = build(MODELS[name])
    without.rope = None
    with scale_rotary_angles(model, 0.0):
        assert torch.allclose(model(images), without(images), rtol=0, atol=1e-12)
        assert not torch.allclose(model(images), before, rtol=0, atol=1e-3)
    assert torch.equal(model(images), before)
    assert torch.equal(model.rope.bands, bands)


@pytest.mark.parametrize("cached", [True, False])
def test_scaled_angles_are_those_of_scaled_coordinates(cached):
    model = build(partial(eva, use_rot_pos_emb=True, dynamic_img_size=not cached))
    rope = model.rope
    angles = (torch.arange(GRID[0]).double()[:, None] * rope.bands).tolist()
    with scale_rotary_angles(model, 0.5), scale_rotary_angles(model, 0.5):
        sines, cosines = rope.get_embed(shape=GRID).clone().double().chunk(2, dim=-1)
    first_column = sines.view(*GRID, -1)[:, 0]  # only the row's angle differs from 0 here
    wanted = np.repeat(np.sin(0.25 * np.array(angles)), 2, axis=1)
    assert first_column[:, : wanted.shape[1]].numpy() == pytest.approx(wanted, abs=1e-6)
    assert torch.allclose(sines**2 + cosines**2, torch.ones_like(sines))


def test_angles_come_back_after_a_body_that_raises(images):
    model = build(MODELS["rope"])
    before = model(images)
    with pytest.raises(RuntimeError, match="body"), scale_rotary_angles(model, 0.3):
        raise RuntimeError("body")
    assert torch.equal(model(images), before)


@pytest.mark.parametrize(
    ("name", "factor", "message"),
    [
        ("ape", 0.5, "this Eva has no RoPE to scale; it has table"),
        ("relative", 0.5, "this Beit has no RoPE to scale; it has bias"),
        ("rope", -0.1, r"factor must lie in \[0, 1\], not -0.1"),
        ("rope", float("nan"), "not nan"),
    ],
)
def test_angles_that_cannot_be_scaled_are_refused(name, factor, message):
    with pytest.raises(ValueError, match=message), scale_rotary_angles(build(MODELS[name]), factor):
        pass


def test_another_kind_of_rope_is_refused_by_name():
    model = build(MODELS["rope"])
    model.rope = RotaryEmbedding(8, feat_shape=GRID)
    with (
        pytest.raises(ValueError, match="a RotaryEmbedding cannot"),
        scale_kind(model, "rotary", 1),
    ):
        pass


def test_an_unknown_kind_of_position_is_refused():
    with pytest.raises(ValueError, match="unknown kind of position 'rope'; choose one of table"):
        scale_kind(build(MODELS["rope"]), "rope", 0.5).__enter__()


def test_every_kind_of_position_is_found(model, request):
    name = request.node.callspec.params["model"]
    assert position_kinds(model) == tuple(k for k, names in KINDS.items() if name in names)


@torch.inference_mode()
def test_a_factor_of_1_changes_no_bit_and_without_positions_order_means_nothing(model, images):
    """The self-test of a family: at 0 the tokens are a set, and everything comes back."""
    before, kinds = model(images), position_kinds(model)
    order = torch.tensor([1, 2, 0, 4, 5, 3])
    with ExitStack() as scaled:
        for kind in kinds:
            scaled.enter_context(scale_kind(model, kind, 1.0))
        assert torch.equal(model(images), before)
    with ExitStack() as scaled:
        for kind in kinds:
            scaled.enter_context(scale_kind(model, kind, 0.0))
        still = model(images)
        scaled.enter_context(permute_tokens(model, order))
        assert torch.allclose(model(images), still, rtol=0, atol=1e-9)
    assert torch.equal(model(images), before)
    if kinds:  # each kind matters, or the test above would prove nothing
        assert not torch.allclose(still, before, rtol=0, atol=1e-3)
        with permute_tokens(model, order):
            assert not torch.allclose(model(images), before, rtol=0, atol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("name", KINDS["bias"])
def test_a_scaled_bias_is_half_the_bias_and_nests(name, images):
    model = build(MODELS[name])
    (where, *_) = [m for m in model.modules() if hasattr(m, "get_bias")
                   or getattr(m, "relative_position_bias_table", None) is not None]  # fmt: skip
    bias = {"RelPosBias": "get_bias", "RelPosMlp": "get_bias", "Attention": "_get_rel_pos_bias",
            "RelativePositionBias": "forward"}[type(where).__name__]  # fmt: skip
    whole = getattr(where, bias)().clone()
    with scale_position_bias(model, 0.5):
        assert torch.allclose(getattr(where, bias)(), whole / 2)
        with scale_position_bias(model, 0.5):
            assert torch.allclose(getattr(where, bias)(), whole / 4)
        assert torch.allclose(getattr(where, bias)(), whole / 2)
    assert torch.equal(getattr(where, bias)(), whole)
    assert "get_bias" not in vars(where)
    with pytest.raises(RuntimeError, match="body"), scale_position_bias(model, 0.5):
        raise RuntimeError("body")
    assert torch.equal(getattr(where, bias)(), whole)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["mixed", "dinov3", "dinov3_dynamic"])
def test_other_ropes_turn_by_scaled_angles(name):
    model = build(MODELS[name])
    sines, cosines = model.rope.get_embed(GRID).double().chunk(2, dim=-1)
    with scale_rotary_angles(model, 0.5):
        half_sines, half_cosines = model.rope.get_embed(GRID).double().chunk(2, dim=-1)
    assert torch.allclose(2 * half_sines * half_cosines, sines, atol=1e-5)  # sin of twice the angle
    assert torch.allclose(2 * half_cosines**2 - 1, cosines, atol=1e-5)
    assert (sines - half_sines).abs().max() > 0.1

from functools import partial

import numpy as np
import pytest
import torch
from timm.layers import apply_rot_embed_cat
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

from pe_utils.capture import SITES, attention_maps, token_similarity
from pe_utils.interventions import permute_tokens

PATCHES, DEPTH = 6, 3
SIZES = dict(
    img_size=(8, 12), patch_size=4, embed_dim=16, depth=DEPTH, num_heads=2, num_classes=5
)  # fmt: skip
MODELS = {
    "ape": partial(Eva, **SIZES),
    "rope": partial(Eva, **SIZES, use_abs_pos_emb=False, use_rot_pos_emb=True),
    "vit": partial(VisionTransformer, **SIZES, dynamic_img_size=True, reg_tokens=2),
    "vit_no_prefix": partial(VisionTransformer, **SIZES, class_token=False, global_pool="avg"),
    "beit": partial(Beit, **SIZES, use_rel_pos_bias=True),
}


def build(make):
    torch.manual_seed(0)
    model = make().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)
    for block in model.blocks:  # a LayerNorm that does something of its own
        if hasattr(block, "norm1"):
            torch.nn.init.normal_(block.norm1.weight)
            torch.nn.init.normal_(block.norm1.bias)
    return model


@pytest.fixture(params=MODELS)
def model(request):
    return build(MODELS[request.param])


@pytest.fixture
def images():
    return torch.randn(7, 3, *SIZES["img_size"], generator=torch.Generator().manual_seed(1))


def captured(model, batches, sites=SITES):
    with torch.inference_mode(), token_similarity(model, sites) as similarity:
        for batch in batches:
            model(batch)
    return similarity.mean()


def plain_cosine(tokens):
    """One pair of tokens at a time, in float64: mean over the images."""
    tokens = tokens.double()
    cosine = torch.nn.functional.cosine_similarity
    return cosine(tokens[:, :, None], tokens[:, None, :], dim=-1).mean(0).numpy()


def plain_streams(model, images):
    """Patch tokens by site, from forward_intermediates and the model's own parts."""
    outputs = model.forward_intermediates(
        images, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True
    )
    if model.num_prefix_tokens:
        outputs = [torch.cat([prefix, patches], dim=1) for patches, prefix in outputs]
    else:
        outputs = [o[0] if isinstance(o, tuple) else o for o in outputs]
    if isinstance(model, Beit):
        embedded = model.patch_embed(images)
        first = torch.cat([model.cls_token.expand(len(images), -1, -1), embedded], dim=1)
        first = first + model.pos_embed
    else:
        first = model._pos_embed(model.patch_embed(images))
        first = first[0] if isinstance(first, tuple) else first
    inputs = [first, *outputs[:-1]]
    normed = [block.norm1(x) for block, x in zip(model.blocks, inputs, strict=True)]
    streams = dict(attn_input=normed, block_input=inputs, block_output=outputs)
    cut = model.num_prefix_tokens
    return {site: [x[:, cut:] for x in tokens] for site, tokens in streams.items()}


@torch.no_grad()
def test_similarity_equals_a_plain_recomputation(model, images):
    result = captured(model, [images])
    assert tuple(result) == SITES
    for site, streams in plain_streams(model, images).items():
        expected = np.stack([plain_cosine(tokens) for tokens in streams])
        assert result[site].shape == (DEPTH, PATCHES, PATCHES)
        assert result[site].dtype == np.float64
        np.testing.assert_allclose(result[site], expected, atol=1e-5)
    assert abs(result["attn_input"] - result["block_input"]).max() > 0.05
    assert abs(result["block_output"] - result["block_input"]).max() > 0.05


def test_one_block_s_output_is_the_next_one_s_input(model, images):
    result = captured(model, [images])
    np.testing.assert_array_equal(result["block_output"][:-1], result["block_input"][1:])


def test_batches_do_not_matter(model, images):
    whole = captured(model, [images])
    for sizes in ([1] * 7, [5, 2]):  # uneven, so a mean of means would differ
        split = captured(model, images.split(sizes))
        for site in SITES:
            np.testing.assert_allclose(split[site], whole[site], atol=1e-5)
    means = [captured(model, [batch])["block_input"] for batch in images.split([5, 2])]
    assert abs(np.mean(means, axis=0) - whole["block_input"]).max() > 1e-3


@torch.inference_mode()
def test_the_output_does_not_change_and_the_hooks_go(model, images):
    before = model(images)
    with token_similarity(model) as similarity:
        assert torch.equal(model(images), before)
    expected = similarity.mean()
    assert torch.equal(model(images), before)
    for site in SITES:  # what runs outside the body is not counted
        np.testing.assert_array_equal(similarity.mean()[site], expected[site])
    assert not hooks_of(model)


def hooks_of(model):
    return [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_the_hooks_go_when_the_body_fails(model):
    seen = []

    def fail():
        seen.extend(hooks_of(model))
        raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"), token_similarity(model):
        fail()
    assert len(seen) == 2 * DEPTH  # every block and its attention
    assert not hooks_of(model)


def test_only_the_sites_asked_for(model, images):
    everything = captured(model, [images])
    result = captured(model, [images], sites=("block_output",))
    assert list(result) == ["block_output"]
    np.testing.assert_array_equal(result["block_output"], everything["block_output"])


def test_only_the_first_depths(model, images):
    everything = captured(model, [images])
    with torch.inference_mode(), token_similarity(model, depths=2) as similarity:
        assert not any(module in hooks_of(model) for module in model.blocks[2].modules())
        model(images)
    for site in SITES:
        np.testing.assert_array_equal(similarity.mean()[site], everything[site][:2])


@pytest.mark.parametrize("depths", [0, -1, DEPTH + 1])
def test_depths_the_model_does_not_have_are_refused(depths):
    with pytest.raises(ValueError, match=f"between 1 and {DEPTH}, not {depths}"):
        token_similarity(build(MODELS["ape"]), depths=depths).__enter__()


def test_slots_not_contents_are_compared_under_a_permutation(images):
    model = build(partial(Eva, **SIZES, use_abs_pos_emb=False))
    order = torch.tensor([1, 2, 0, 4, 5, 3])
    straight = captured(model, [images])
    with permute_tokens(model, order):
        permuted = captured(model, [images])
    for site in SITES:
        moved = straight[site][:, order][:, :, order]
        np.testing.assert_allclose(permuted[site], moved, atol=1e-4)
        assert abs(straight[site] - moved).max() > 1e-2


def test_two_captures_at_once_agree(model, images):
    with torch.inference_mode(), token_similarity(model) as outer, token_similarity(model) as inner:
        model(images)
    for site in SITES:
        np.testing.assert_array_equal(outer.mean()[site], inner.mean()[site])


@pytest.mark.parametrize("how", ["half", "bfloat16", "autocast"])
def test_half_precision_tokens_are_reduced_in_float32(how, images):
    model = build(MODELS["vit"])
    with torch.no_grad(), token_similarity(model) as similarity:
        if how == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                model(images)
        else:
            model.to(getattr(torch, how))(images.to(getattr(torch, how)))
    for matrices in similarity.mean().values():
        diagonal = matrices[:, np.arange(PATCHES), np.arange(PATCHES)]
        np.testing.assert_allclose(diagonal, 1, atol=1e-6)  # bfloat16 products miss by 1e-3


def test_gradients_are_neither_blocked_nor_kept(model, images):
    model(images).sum().backward()
    expected = model.patch_embed.proj.weight.grad.clone()
    model.zero_grad()
    with token_similarity(model) as similarity:
        model(images).sum().backward()
    assert torch.equal(model.patch_embed.proj.weight.grad, expected)
    assert all(isinstance(s, np.ndarray) for s in similarity.mean().values())


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
@pytest.mark.parametrize("site", SITES)
def test_a_token_without_direction_is_refused_by_site_and_depth(site, bad, images):
    model = build(MODELS["ape"])
    token = 1 + 4  # the fifth patch, of one image only

    def spoil(_module, args):
        tokens = args[0].clone()
        tokens[2, token] = bad
        return tokens, *args[1:]

    def spoil_output(_module, _args, output):
        return spoil(None, (output,))[0]

    block = model.blocks[1]
    if site == "block_output":
        block.register_forward_hook(spoil_output)
    else:
        (block.attn if site == "attn_input" else block).register_forward_pre_hook(spoil)
    with pytest.raises(ValueError, match=f"{site} at depth 1: a patch token is zero or not finite"):
        captured(model, [images], sites=(site,))


def test_a_prefix_token_may_be_zero(images):
    model = build(MODELS["vit"])
    expected = captured(model, [images], sites=("block_input",))["block_input"][0]
    with torch.no_grad():
        model.cls_token.zero_()
        model.pos_embed[:, :1].zero_()
    changed = captured(model, [images], sites=("block_input",))["block_input"][0]
    np.testing.assert_array_equal(changed, expected)


def test_another_image_size_is_refused(images):
    model = build(MODELS["vit"])
    with pytest.raises(ValueError, match="2 patches after batches of 6"):
        captured(model, [images, images[:, :, :4, :8]])


def test_no_image_is_refused(model):
    with pytest.raises(ValueError, match="no image"):
        captured(model, [])


@pytest.mark.parametrize("sites", [("attn_output",), ("block_input", "mlp"), "attn_input", ()])
def test_unknown_sites_are_refused(sites):
    with pytest.raises(ValueError, match="sites must be some of"):
        token_similarity(build(MODELS["ape"]), sites).__enter__()


def test_other_models_are_refused_by_name():
    swin = SwinTransformer(img_size=32, patch_size=4, embed_dim=8, depths=(1,), num_heads=(1,))
    with pytest.raises(ValueError, match="SwinTransformer is not supported"):
        token_similarity(swin).__enter__()


def test_blocks_without_an_attention_module_have_no_attn_input(images):
    model = build(partial(VisionTransformer, **SIZES, block_fn=ParallelScalingBlock))
    with pytest.raises(ValueError, match="block 0 is a ParallelScalingBlock without `attn`"):
        token_similarity(model).__enter__()
    assert captured(model, [images], sites=("block_output",))["block_output"].shape[0] == DEPTH


def test_centred_similarity_subtracts_each_images_mean_patch(images):
    model = build(MODELS["ape"])
    kept = []
    handle = model.blocks[1].attn.register_forward_pre_hook(lambda _m, args: kept.append(args[0]))
    with torch.inference_mode(), token_similarity(model, ["attn_input"], centred=True) as seen:
        model(images)
    handle.remove()
    patches = kept[0][:, 1:]
    wanted = plain_cosine(patches - patches.mean(dim=1, keepdim=True))
    assert seen.mean()["attn_input"][1] == pytest.approx(wanted, abs=1e-5)
    plain = captured(model, [images], ["attn_input"])["attn_input"][1]
    assert np.abs(plain - wanted).max() > 0.05


def plain_attention(model, images):
    """softmax(Q K^T / sqrt(d)) from each block's own weights, among the patches."""
    streams, kept = [], []
    for block in model.blocks:
        streams.append(block.attn.register_forward_pre_hook(lambda _m, args: kept.append(args[0])))
    model(images)
    for handle in streams:
        handle.remove()
    cut, found = model.num_prefix_tokens, []
    for block, x in zip(model.blocks, kept, strict=True):
        attn, (batch, tokens, dim) = block.attn, x.shape
        qkv = x @ attn.qkv.weight.T
        if attn.qkv.bias is not None:
            qkv = qkv + attn.qkv.bias
        if getattr(attn, "q_bias", None) is not None:
            qkv = qkv + torch.cat([attn.q_bias, torch.zeros(dim), attn.v_bias])
        q, k, _ = qkv.reshape(batch, tokens, 3, 2, dim // 2).permute(2, 0, 3, 1, 4)
        if getattr(model, "rope", None) is not None:
            turn = model.rope.get_embed()
            q, k = (torch.cat([t[:, :, :cut], apply_rot_embed_cat(t[:, :, cut:], turn)], dim=2)
                    for t in (q, k))  # fmt: skip
        logits = q @ k.mT / (dim // 2) ** 0.5
        if isinstance(model, Beit):
            logits = logits + attn._get_rel_pos_bias()
        among = logits[:, :, cut:, cut:]  # a softmax over fewer keys is the renormalised one
        found.append(among.softmax(dim=-1))
    return found


def set_fused(model, fused):
    for block in model.blocks:
        block.attn.fused_attn = fused


@torch.inference_mode()
@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_the_plain_softmax_and_no_output_bit_changes(model, images, fused):
    set_fused(model, fused)
    before, seen = model(images), {}
    with attention_maps(model, lambda depth, maps: seen.update({depth: maps.clone()})):
        during = model(images)
    assert torch.equal(during, before)
    assert torch.equal(model(images), before)
    assert {block.attn.fused_attn for block in model.blocks} == {fused}
    assert not hooks_of(model)
    assert list(seen) == list(range(DEPTH))
    for depth, wanted in enumerate(plain_attention(model, images)):
        assert seen[depth].shape == (len(images), 2, PATCHES, PATCHES)
        assert torch.allclose(seen[depth], wanted, atol=1e-5)
        assert (seen[depth].std(dim=-1) > 0.01).any()


def test_attention_is_heard_once_per_block_and_batch(images):
    calls = []
    model = build(MODELS["vit"])
    with (
        torch.no_grad(),
        attention_maps(model, lambda depth, maps: calls.append((depth, len(maps)))),
    ):
        for batch in images.split([5, 2]):
            model(batch)
    assert calls == [(d, n) for n in (5, 2) for d in range(DEPTH)]


def test_a_receiver_that_fails_leaves_the_model_as_it_was(images):
    model = build(MODELS["vit"])
    set_fused(model, True)

    def fail(_depth, _maps):
        raise RuntimeError("receiver")

    with pytest.raises(RuntimeError, match="receiver"), attention_maps(model, fail):
        model(images)
    assert all(block.attn.fused_attn for block in model.blocks)
    assert not hooks_of(model)


def test_attention_that_cannot_be_read_is_refused():
    swin = SwinTransformer(img_size=32, patch_size=4, embed_dim=8, depths=(1,), num_heads=(1,))
    with pytest.raises(ValueError, match="SwinTransformer is not supported"):
        attention_maps(swin, print).__enter__()
    model = build(partial(VisionTransformer, **SIZES, block_fn=ParallelScalingBlock))
    with pytest.raises(ValueError, match="block 0 has a NoneType, whose attention cannot be read"):
        attention_maps(model, print).__enter__()


@pytest.mark.parametrize("fused", [True, False])
def test_two_who_listen_to_attention_hear_the_same_once_each(images, fused):
    model, heard = build(MODELS["vit"]), ([], [])
    set_fused(model, fused)
    first, second = (lambda d, maps, own=own: own.append((d, maps.clone())) for own in heard)
    with torch.no_grad(), attention_maps(model, first), attention_maps(model, second):
        model(images)
    assert [d for d, _ in heard[0]] == [d for d, _ in heard[1]] == list(range(DEPTH))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(*heard, strict=True))


def test_attention_that_goes_to_prefix_tokens_only_is_refused_by_block(images):
    model = build(MODELS["vit"])
    set_fused(model, False)

    def sink(_module, args):
        weights = torch.zeros_like(args[0])
        weights[..., 0] = 1
        return (weights,)

    model.blocks[1].attn.attn_drop.register_forward_pre_hook(sink)
    nowhere, match = attention_maps(model, lambda _d, _maps: None), "block 1: a patch attends to"
    with torch.no_grad(), nowhere, pytest.raises(ValueError, match=match):
        model(images)


def test_differential_attention_has_no_map_per_head():
    model = build(partial(VisionTransformer, **SIZES, attn_layer="diff"))
    with pytest.raises(ValueError, match="block 0 has a DiffAttention, whose attention cannot be"):
        attention_maps(model, print).__enter__()

"""Which timm models this code can take apart, found out by running them."""

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from functools import partial

import pandas as pd
import timm
import torch
from timm.data import resolve_model_data_config
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from pe_utils.capture import attention_maps, token_similarity
from pe_utils.data import MEAN, STD
from pe_utils.families import accepted, check_family, grid_of, known_reason, trusted
from pe_utils.interventions import permute_tokens, position_kinds, scale_kind

SMALL = dict(embed_dim=48, depth=2, num_heads=2)
SAMPLES = {  # family to one of timm's names; `SMALL` makes it small
    "ViT": "vit_small_patch16_224",
    "ViT without class token": "vit_medium_patch16_gap_256",
    "ViT with registers": "vit_medium_patch16_reg4_gap_256",
    "ViT with attention pooling": "vit_so150m_patch16_reg4_map_256",
    "CLIP": "vit_base_patch16_clip_224",
    "SigLIP": "vit_base_patch16_siglip_224",
    "AIMv2": "aimv2_large_patch14_224",
    "BEiT-3": "beit3_base_patch16_224",
    "DeiT": "deit_small_patch16_224",
    "DeiT, distilled": "deit_small_distilled_patch16_224",
    "DeiT III": "deit3_small_patch16_224",
    "FlexiViT": "flexivit_small",
    "DINOv2": "vit_small_patch14_dinov2",
    "DINOv2 with registers": "vit_small_patch14_reg4_dinov2",
    "DINOv3": "vit_small_patch16_dinov3",
    "EVA": "eva_large_patch14_196",
    "EVA-02": "eva02_tiny_patch14_224",
    "Perception Encoder": "vit_pe_core_tiny_patch16_384",
    "RoPE, axial": "vit_small_patch16_rope_224",
    "RoPE, axial, and a table": "vit_small_patch16_rope_ape_224",
    "RoPE, mixed": "vit_small_patch16_rope_mixed_224",
    "RoPE, mixed, and a table": "vit_small_patch16_rope_mixed_ape_224",
    "Relative position": "vit_relpos_small_patch16_224",
    "Relative position, class token": "vit_relpos_base_patch16_cls_224",
    "Relative position, shared": "vit_srelpos_small_patch16_224",
    "BEiT": "beit_base_patch16_224",
    "BEiT v2": "beitv2_base_patch16_224",
    "NaFlex": "naflexvit_base_patch16_gap",
    "NaFlex, factorised": "naflexvit_base_patch16_parfac_gap",
}
REFUSED = (
    "cait_xxs24_224", "convit_tiny", "crossvit_tiny_240", "hiera_tiny_224", "levit_128",
    "mixer_s32_224", "mvitv2_tiny", "pit_ti_224", "resnet18", "samvit_base_patch16",
    "swin_tiny_patch4_window7_224", "vit_base_patch16_xp_224", "vit_dwee_patch16_reg1_gap_256",
    "vit_small_r26_s32_224",    "volo_d1_224", "xcit_nano_12_p16_224",
)  # fmt: skip


def preprocessing(model: nn.Module) -> dict:
    """The model's own, as timm resolves it, at its real size; without one, images are squashed.

    Raises: ValueError: nothing tells the size of its images.
    """
    config = {"mean": MEAN, "std": STD, "crop_pct": 1.0, "crop_mode": "squash"}
    if getattr(model, "pretrained_cfg", None):
        config = resolve_model_data_config(model)
    embed = model.embeds if isinstance(model, NaFlexVit) else getattr(model, "patch_embed", None)
    size = getattr(embed, "default_img_size", None) or getattr(embed, "img_size", None)
    if size is None and "input_size" not in config:
        raise ValueError("nothing tells the size of its images; set pretrained_cfg['input_size']")
    return config if size is None else config | {"input_size": (3, *size)}


def verify(model: nn.Module) -> None:
    """Test that the model's tokens can be followed; a class that passes is accepted from then on.

    On a float32 copy with weights drawn anew and large, so that nothing hides in small ones:
    permuting tokens must equal permuting the image's patches; the positions found must matter, and
    without them every block must see the same tokens in another order; a block runs once per pass,
    on the prefix and then the patches, and `forward_intermediates` as `forward` does. On the model
    itself: measuring changes no bit, and every block shows its attention.

    Raises: ValueError: a test fails, the model lacks what they need, or it is in training mode.
    """
    kind = type(model)
    if model.training:
        raise ValueError(f"the {kind.__name__} is in training mode; call eval()")
    new = not trusted(model) and not known_reason(model)
    if new:
        accepted.add(kind)
    passed = False
    try:
        check_family(model)
        size = preprocessing(model)["input_size"][1:]
        _check_order(_redrawn(model), size)
        _check_unchanged(model, size)
        passed = True
    except Exception as error:  # a foreign forward pass may raise anything
        raise ValueError(f"{kind.__name__} cannot be probed: {error}") from error
    finally:
        if new and not passed:
            accepted.discard(kind)


def _redrawn(model: nn.Module) -> nn.Module:
    """A float32 copy whose weights are drawn anew: matrices N(0, 0.1), vectors from 0.5 to 1.5."""
    copied, generator = deepcopy(model).float(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in copied.parameters():
            drawn = torch.empty(weight.shape)
            if weight.ndim > 1:
                drawn.normal_(std=0.1, generator=generator)
            else:
                drawn.uniform_(0.5, 1.5, generator=generator)  # LayerScale too
            weight.copy_(drawn)
    return copied


@torch.inference_mode()
def _check_order(model: nn.Module, size: tuple[int, int]) -> None:
    grid, generator = grid_of(model, size), torch.Generator().manual_seed(0)
    order = torch.randperm(grid[0] * grid[1], generator=generator)
    device = next(model.parameters()).device
    images = torch.randn(2, 3, *size, generator=generator).to(device)
    if not isinstance(output := model(images), Tensor):
        raise ValueError(f"its forward must return one tensor, not a {type(output).__name__}")
    _check_blocks(model, images, len(order))
    with permute_tokens(model, order):
        permuted = model(images)
    if _differ(permuted, model(_permute_patches(model, images, order, grid))):
        raise ValueError("permuting its tokens is not the same as permuting the image's patches")
    kinds = position_kinds(model)
    if kinds and not _differ(permuted, output):
        raise ValueError(f"its positions ({', '.join(kinds)}) do not act on its output")
    with ExitStack() as scaled:
        for kind in kinds:
            scaled.enter_context(scale_kind(model, kind, 0.0))
        still, prefix = _block_inputs(model, model, images), model.num_prefix_tokens
        plain = model(images)
        scaled.enter_context(permute_tokens(model, order))
        moved = _block_inputs(model, model, images)
        if _differ(model(images), plain):
            raise ValueError(
                f"with all positions found ({', '.join(kinds) or 'none'}) at 0, the order of "
                "tokens still matters: it has other positions, or mixes neighbours"
            )
        for depth, (one, other) in enumerate(zip(still, moved, strict=True)):
            if _differ(one[:, :prefix], other[:, :prefix]) or _differ(
                one[:, prefix:][:, order], other[:, prefix:]
            ):
                raise ValueError(
                    f"token i that block {depth} sees, after {prefix} prefix tokens, is not patch i"
                )


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs differ by more than rounding, which is about 1e-6."""
    return a.numel() > 0 and bool((a - b).abs().max() > 1e-4 * b.std().clamp(min=1e-6))


def _check_blocks(model: nn.Module, images: Tensor, patches: int) -> None:
    inputs, prefix = _block_inputs(model, model, images), model.num_prefix_tokens
    if (tokens := inputs[0].shape[1]) != prefix + patches:
        raise ValueError(
            f"its blocks see {tokens} tokens, not {patches} patches and num_prefix_tokens={prefix}"
        )
    if hasattr(model, "forward_intermediates"):
        run = partial(model.forward_intermediates, indices=[len(inputs) - 1], stop_early=True,
                      intermediates_only=True)  # fmt: skip
        others = _block_inputs(model, run, images)
        if any(_differ(one, other) for one, other in zip(inputs, others, strict=True)):
            raise ValueError("its forward_intermediates does not compute what its forward does")


def _block_inputs(
    model: nn.Module, run: Callable[[Tensor], object], images: Tensor
) -> list[Tensor]:
    """What every block receives during one pass.

    Raises: ValueError: a block runs twice or not at all.
    """
    seen = []
    with ExitStack() as hooks:
        for block in model.blocks:
            hook = block.register_forward_pre_hook(lambda _block, args: seen.append(args[0]))
            hooks.callback(hook.remove)
        run(images)
    if len(seen) != len(model.blocks):
        raise ValueError(f"its {len(model.blocks)} blocks run {len(seen)} times in one pass")
    return seen


@torch.inference_mode()
def _check_unchanged(model: nn.Module, size: tuple[int, int]) -> None:
    weight, generator = next(model.parameters()), torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, *size, generator=generator).to(weight)
    plain = model(images)
    with token_similarity(model), attention_maps(model, lambda _depth, _maps: None):
        heard = model(images)
    if not torch.equal(heard, plain) or not torch.equal(model(images), plain):
        raise ValueError("measuring it changes its output")


def _permute_patches(
    model: nn.Module, images: Tensor, order: Tensor, grid: tuple[int, int]
) -> Tensor:
    """Patch i of the result is patch order[i] of the images; pixels beyond the grid stay."""
    embed = model.embeds if isinstance(model, NaFlexVit) else model.patch_embed
    tall, wide = embed.patch_size
    if grid[0] * tall > images.shape[2] or grid[1] * wide > images.shape[3]:
        raise ValueError(f"it pads images to whole patches; use multiples of {tall} x {wide} px")
    images = images.clone()
    inside = images[:, :, : grid[0] * tall, : grid[1] * wide]
    patches = inside.unflatten(2, (grid[0], tall)).unflatten(4, (grid[1], wide))
    flat = patches.permute(2, 4, 0, 1, 3, 5).flatten(0, 1)[order]
    moved = flat.unflatten(0, grid).permute(2, 3, 0, 4, 1, 5).flatten(4, 5).flatten(2, 3)
    inside.copy_(moved)
    return images


def supported() -> pd.DataFrame:
    """The families this code can take apart, each built small and put through the self-test.

    Returns: columns family, example, class, positions, prefix tokens, grid.
    Raises: ValueError: one of them fails, which names what went wrong.
    """
    rows = []
    for family, name in SAMPLES.items():
        model = timm.create_model(name, **SMALL).eval()
        verify(model)
        grid = grid_of(model, preprocessing(model)["input_size"][1:])
        rows.append((family, name, type(model).__name__, ", ".join(position_kinds(model)) or "none",
                     model.num_prefix_tokens, f"{grid[0]} x {grid[1]}"))  # fmt: skip
    columns = ["family", "example", "class", "positions", "prefix tokens", "grid"]
    return pd.DataFrame(rows, columns=columns)


def refused() -> pd.DataFrame:
    """Models that are refused, and why: columns example, class, reason."""
    rows = []
    for name in REFUSED:
        model = timm.create_model(name).eval()
        try:
            verify(model)
        except ValueError as error:
            rows.append((name, type(model).__name__, str(error).rpartition(": ")[2]))
    return pd.DataFrame(rows, columns=["example", "class", "reason"])

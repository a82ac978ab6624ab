"""Reversible edits of a timm ViT's forward pass: context managers, exact and nestable.

Each works from outside on a plain timm ViT and leaves no trace, also when the body raises.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from timm.layers import PatchEmbed, RotaryEmbeddingCat
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

FAMILIES = (VisionTransformer, Eva, Beit)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@contextmanager
def permute_tokens(model: nn.Module, order: Tensor | NDArray[np.integer]) -> Iterator[None]:
    """Shuffle patch content under fixed positions: slot i receives patch order[i].

    Acts right after the patch embedding, before any position enters, so that learned,
    sinusoidal, rotary and relative encodings are all met at the same point. Nested, the outer
    order acts first: slot i receives patch outer[inner[i]].

    Args:
        model: a timm VisionTransformer, Eva or Beit.
        order: (patches,) integers, one permutation of range(patches) for every image, or
            (batch, patches), one for each image of every batch that is run.

    Raises:
        ValueError: on entering, for another kind of model or when `order` is no permutation;
            on the forward pass, when patches or batch size differ from those of `order`.

    Source: arXiv:2606.00124, section 4.3.
    """
    _check_family(model)
    if not isinstance(model.patch_embed, PatchEmbed):
        raise ValueError(
            f"permute_tokens needs a plain PatchEmbed; this {type(model).__name__} has a "
            f"{type(model.patch_embed).__name__}, whose tokens share pixels"
        )
    index = _checked_order(order)

    def shuffle(_module: nn.Module, _inputs: tuple, tokens: Tensor) -> Tensor:
        return _reorder(tokens, index.to(tokens.device))

    handle = model.patch_embed.register_forward_hook(shuffle)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def scale_positions(model: nn.Module, alpha: float) -> Iterator[None]:
    """Multiply the additive position table by `alpha`, the class token's row included.

    Nested factors multiply. The table is copied back on leaving, so whatever the body writes
    into it is lost; the parameter object and its requires_grad stay as they are.

    Args:
        model: a timm VisionTransformer, Eva or Beit whose only positions are an additive table.
        alpha: factor in [0, 1]; 1 changes no bit, 0 leaves no position.

    Raises:
        ValueError: alpha outside [0, 1], no additive table, or positions besides the table
            (rotary, relative bias), which scaling it would leave in place.

    Source: arXiv:2606.00124, the section on alpha-scaling.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha!r}")
    table = _only_additive_table(model)
    saved = table.detach().clone()
    try:
        with torch.no_grad():
            table.mul_(alpha)
        yield
    finally:
        with torch.no_grad():
            table.copy_(saved)  # exact, unlike dividing by alpha


@contextmanager
def scale_rotary_angles(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiply every rotation angle of RoPE by `factor`: positions move closer together.

    Ours, not the paper's, which defines no alpha for RoPE; a table beside RoPE stays as it is.
    Nested factors multiply.

    Args:
        model: a timm Eva with axial RoPE (`RotaryEmbeddingCat`).
        factor: in [0, 1]; 1 changes no bit, 0 rotates nothing.

    Raises:
        ValueError: factor outside [0, 1], or another model or kind of RoPE.
    """
    if not 0 <= factor <= 1:
        raise ValueError(f"factor must lie in [0, 1], not {factor!r}")
    _check_family(model)
    rope = getattr(model, "rope", None)
    if not isinstance(rope, RotaryEmbeddingCat):
        kind = "no RoPE" if rope is None else f"a {type(rope).__name__}, not axial RoPE"
        raise ValueError(f"this {type(model).__name__} has {kind}; there are no angles to scale")
    buffers = [b for b in (rope.bands, rope.pos_embed) if b is not None]
    saved = [buffer.clone() for buffer in buffers]
    try:
        rope.bands.mul_(factor)  # angles are frequency bands times coordinates
        if rope.pos_embed is not None and factor != 1:  # or rounding may move a bit
            rope._init_cached_embed(rope.bands)
        yield
    finally:
        for buffer, content in zip(buffers, saved, strict=True):
            buffer.copy_(content)


def _check_family(model: nn.Module) -> None:
    if not isinstance(model, FAMILIES):
        names = ", ".join(family.__name__ for family in FAMILIES)
        raise ValueError(f"{type(model).__name__} is not supported; pass a plain timm {names}")


def _checked_order(order: Tensor | NDArray[np.integer]) -> Tensor:
    """A private int64 copy of `order`, (patches,) or (batch, patches), on the CPU."""
    if not isinstance(order, Tensor):
        order = torch.from_numpy(np.array(order, order="C"))
    if order.dtype not in INTEGERS:
        raise ValueError(f"order must hold integers, not {order.dtype}")
    if order.ndim not in (1, 2):
        raise ValueError(
            f"order must be (patches,) or (batch, patches), not of shape {tuple(order.shape)}"
        )
    index = order.detach().to("cpu", torch.int64, copy=True)
    rows, patches = torch.atleast_2d(index), index.shape[-1]
    wrong = (rows.sort(dim=1).values != torch.arange(patches)).any(dim=1).nonzero()
    if len(wrong):
        where = f" in row {wrong[0].item()}" if index.ndim == 2 else ""
        raise ValueError(f"order is not a permutation of range({patches}){where}")
    return index


def _reorder(tokens: Tensor, order: Tensor) -> Tensor:
    """Tokens (batch, patches, dim) or (batch, rows, columns, dim), slot i from order[i]."""
    flat = tokens if tokens.ndim == 3 else tokens.flatten(1, 2)
    if flat.shape[1] != order.shape[-1]:
        raise ValueError(f"{flat.shape[1]} patches but order has {order.shape[-1]} entries")
    if order.ndim == 1:
        return flat[:, order].reshape(tokens.shape)
    if len(flat) != len(order):
        raise ValueError(f"{len(flat)} images but order has {len(order)} rows")
    return flat.take_along_dim(order[:, :, None], dim=1).reshape(tokens.shape)


def _only_additive_table(model: nn.Module) -> Tensor:
    """The position table, (1, tokens, dim), of a model that has no other positions."""
    _check_family(model)
    kind = type(model).__name__
    rotary = getattr(model, "rope", None) is not None
    if rotary and model.pos_embed is None:
        raise ValueError(f"this {kind} is rotary; alpha is not defined for RoPE in the paper")
    if model.pos_embed is None:
        raise ValueError(f"this {kind} has no additive position table; there is nothing to scale")
    if rotary:
        raise ValueError(
            f"this {kind} is rotary besides its table; alpha is not defined for RoPE in the "
            f"paper, and scaling the table alone would leave positions in place"
        )
    if isinstance(model, Beit) and _has_relative_bias(model):
        raise ValueError(
            f"this {kind} has a relative position bias besides its table; scaling the table "
            f"alone would leave positions in place"
        )
    return model.pos_embed


def _has_relative_bias(model: Beit) -> bool:
    return any("relative_position_bias_table" in name for name, _ in model.named_parameters())

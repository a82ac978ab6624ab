"""Reversible edits of a timm ViT's forward pass: context managers, exact and nestable.

Each works from outside on a plain timm ViT and leaves no trace, also when the body raises.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from timm.layers import (
    RelPosMlp,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
)
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from pe_utils.families import check_family, patch_tokens

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@contextmanager
def permute_tokens(model: nn.Module, order: Tensor | NDArray[np.integer]) -> Iterator[None]:
    """Shuffle patch content under fixed positions: slot i receives patch order[i].

    Acts right after the patch embedding, before any position enters, so that learned,
    sinusoidal, rotary and relative encodings are all met at the same point. Nested, the outer
    order acts first: slot i receives patch outer[inner[i]].

    Args:
        model: a supported timm model (`pe_utils.families`).
        order: (patches,) integers, one permutation of range(patches) for every image, or
            (batch, patches), one for each image of every batch that is run.

    Raises:
        ValueError: on entering, for another kind of model or when `order` is no permutation;
            on the forward pass, when patches or batch size differ from those of `order`.

    Source: arXiv:2606.00124, section 4.3.
    """
    check_family(model)
    index = _checked_order(order)

    def shuffle(_module: nn.Module, _inputs: tuple, tokens: Tensor) -> Tensor:
        return _reorder(tokens, index.to(tokens.device))

    handle = patch_tokens(model).register_forward_hook(shuffle)
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
        model: a supported timm model (`pe_utils.families`) whose only positions are a table.
        alpha: factor in [0, 1]; 1 changes no bit, 0 leaves no position.

    Raises:
        ValueError: alpha outside [0, 1], no additive table, or positions besides the table
            (rotary, relative bias), which scaling it would leave in place.

    Source: arXiv:2606.00124, the section on alpha-scaling.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha!r}")
    _check_only_table(model)
    with scale_kind(model, "table", alpha):
        yield


@contextmanager
def scale_rotary_angles(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiply every rotation angle of RoPE by `factor`: positions move closer together.

    Ours, not the paper's, which defines no alpha for RoPE; other positions stay as they are.
    Nested factors multiply.

    Args:
        model: a supported timm model with axial, mixed or DINOv3 RoPE.
        factor: in [0, 1]; 1 changes no bit, 0 rotates nothing.

    Raises:
        ValueError: factor outside [0, 1], or a model without RoPE or with another kind of it.
    """
    with scale_kind(model, "rotary", factor):
        yield


@contextmanager
def scale_position_bias(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiply the relative position bias of every attention by `factor`.

    Ours, not the paper's; other positions stay as they are. Nested factors multiply.

    Args:
        model: a supported timm model with a relative position bias (table or MLP).
        factor: in [0, 1]; 1 changes no bit, 0 leaves no bias.

    Raises:
        ValueError: factor outside [0, 1], or a model without relative position bias.
    """
    with scale_kind(model, "bias", factor):
        yield


def position_kinds(model: nn.Module) -> tuple[str, ...]:
    """Which positions a model has: some of `table`, `rotary` and `bias`.

    Raises: ValueError: another kind of model.
    """
    check_family(model)
    found = {"table": _tables(model), "rotary": getattr(model, "rope", None) is not None,
             "bias": _bias_tables(model) or _bias_networks(model)}  # fmt: skip
    return tuple(kind for kind, there in found.items() if there)


@contextmanager
def scale_kind(model: nn.Module, kind: str, factor: float) -> Iterator[None]:
    """Multiply one kind of positions by `factor`, whatever else the model has.

    Args: kind: `table`, `rotary` or `bias`; factor: in [0, 1].
    Raises: ValueError: an unknown kind, factor outside [0, 1], or a model without such positions.
    """
    if not 0 <= factor <= 1:
        raise ValueError(f"factor must lie in [0, 1], not {factor!r}")
    names = {"table": "additive position table", "rotary": "RoPE",
             "bias": "relative position bias"}  # fmt: skip
    if kind not in names:
        raise ValueError(f"unknown kind of position {kind!r}; choose one of {', '.join(names)}")
    if kind not in (kinds := position_kinds(model)):
        others = f"; it has {' and '.join(kinds)}" if kinds else ""
        raise ValueError(f"this {type(model).__name__} has no {names[kind]} to scale{others}")
    with ExitStack() as undo:
        if kind == "rotary":
            undo.enter_context(_scaled_angles(model.rope, factor))
        else:
            tables = _tables(model) if kind == "table" else _bias_tables(model)
            for table in tables:
                undo.enter_context(_scaled(table, factor))
            for network in _bias_networks(model) if kind == "bias" else ():
                undo.enter_context(_scaled_network(network, factor))
        yield


@contextmanager
def _scaled(tensor: Tensor, factor: float) -> Iterator[None]:
    saved = tensor.detach().clone()
    try:
        with torch.no_grad():
            tensor.mul_(factor)
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(saved)  # exact, unlike dividing by the factor


@contextmanager
def _scaled_network(network: RelPosMlp, factor: float) -> Iterator[None]:
    inner, own = network.get_bias, "get_bias" in vars(network)
    network.get_bias = lambda: inner() * factor
    try:
        yield
    finally:
        if own:  # nested in another factor
            network.get_bias = inner
        else:
            del network.get_bias


@contextmanager
def _scaled_angles(rope: nn.Module, factor: float) -> Iterator[None]:
    """Angles are linear in the bands (axial) or frequencies (mixed) and in 1 / periods (DINOv3)."""
    names = {RotaryEmbeddingCat: ("bands", "pos_embed"), RotaryEmbeddingMixed: ("freqs",),
             RotaryEmbeddingDinoV3: ("periods", "pos_embed_cached")}  # fmt: skip
    if type(rope) not in names:
        raise ValueError(
            f"the angles of a {type(rope).__name__} cannot be scaled, only those of "
            f"{', '.join(kind.__name__ for kind in names)}"
        )
    buffers = [b for name in names[type(rope)] if (b := getattr(rope, name)) is not None]
    saved = [buffer.detach().clone() for buffer in buffers]
    try:
        with torch.no_grad():
            buffers[0].mul_(factor if "periods" not in names[type(rope)] else 1)
            if "periods" in names[type(rope)]:
                buffers[0].div_(factor)  # 0 makes the periods infinite and the angles 0
            if len(buffers) > 1 and factor != 1:  # or rounding may move a bit
                _refresh_cache(rope)
        yield
    finally:
        with torch.no_grad():
            for buffer, content in zip(buffers, saved, strict=True):
                buffer.copy_(content)


def _refresh_cache(rope: nn.Module) -> None:
    if isinstance(rope, RotaryEmbeddingCat):
        rope._init_cached_embed(rope.bands)
    else:
        cached = rope._create_embed(rope.feat_shape, no_aug=True)
        rope.pos_embed_cached.copy_(cached.to(rope.pos_embed_cached.dtype))


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


def _tables(model: nn.Module) -> list[Tensor]:
    """The additive position tables: one, or two (rows and columns) where it is factorised."""
    home = model.embeds if isinstance(model, NaFlexVit) else model
    names = ("pos_embed", "pos_embed_y", "pos_embed_x")
    return [table for name in names if isinstance(table := getattr(home, name, None), Tensor)]


def _bias_tables(model: nn.Module) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if "relative_position_bias_table" in name]


def _bias_networks(model: nn.Module) -> list[RelPosMlp]:
    return [module for module in model.modules() if isinstance(module, RelPosMlp)]


def _check_only_table(model: nn.Module) -> None:
    kind, kinds = type(model).__name__, position_kinds(model)
    if "rotary" in kinds:
        besides = " besides its table" if "table" in kinds else ""
        raise ValueError(
            f"this {kind} is rotary{besides}; alpha is not defined for RoPE in the paper "
            "(scale_rotary_angles scales its angles)"
        )
    if "bias" in kinds:
        besides = " besides its table" if "table" in kinds else ""
        raise ValueError(
            f"this {kind} has a relative position bias{besides}; alpha is defined for a table "
            "alone (scale_position_bias scales the bias)"
        )
    if not kinds:
        raise ValueError(f"this {kind} has no additive position table; there is nothing to scale")

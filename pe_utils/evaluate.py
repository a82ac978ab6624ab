"""Accuracy and SSDC of whatever state the model is in: interventions are the caller's `with`."""

from collections import defaultdict
from contextlib import nullcontext
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from pe_utils.capture import attention_maps, token_similarity
from pe_utils.data import MEAN, STD, Split, normalise
from pe_utils.families import check_family, grid_of
from pe_utils.interventions import permute_tokens
from pe_utils.metrics import (
    attention_entropy,
    fragility,
    mean_attention_distance,
    self_attention_share,
    ssdc,
)

MAPS = 20_000_000  # attention weights held at a time: some hundred megabytes
BATCH = 50  # small enough for the caches of a CPU core


@torch.inference_mode()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images classified right, in [0, 1]; counts images, not batches.

    Args: images: (n, 3, height, width) uint8; labels: (n,) int64.
    Raises: ValueError: no images, another number of labels than images, or training mode.
    """
    if not len(images) or len(images) != len(labels):
        raise ValueError(f"{len(images)} images with {len(labels)} labels")
    _check_eval(model)
    right = 0
    for batch, truth in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        logits = model(prepared(batch, model))
        right += int((logits.argmax(dim=1).cpu() == truth).sum())
    return right / len(images)


def accuracy_under_rpi(
    model: nn.Module, images: Tensor, labels: Tensor, orders: NDArray[np.int64]
) -> float:
    """Accuracy where every order meets its own equal share of the images, which are not reused.

    Args: as `accuracy`; orders: (orders, patches), no more than images (`metrics.random_orders`).
    Raises: ValueError: as `accuracy` and `permute_tokens`, no orders, or fewer images than orders.
    """
    if not 1 <= len(orders) <= len(images):
        raise ValueError(f"{len(orders)} orders for {len(images)} images")
    right = 0.0
    shares = zip(images.tensor_split(len(orders)), labels.tensor_split(len(orders)), strict=True)
    for order, (some, truth) in zip(orders, shares, strict=True):
        with permute_tokens(model, order):
            right += accuracy(model, some, truth) * len(some)
    return round(right) / len(images)


@torch.inference_mode()
def ssdc_by_depth(model: nn.Module, images: Tensor, depths: int | None = None) -> pd.DataFrame:
    """SSDC of the image-averaged similarity at the first `depths` blocks (all by default).

    Args: images: (n, 3, height, width) uint8; memory does not grow with n.
    Returns: columns site (`attn_input`, `block_input`, `block_output`), depth, ssdc.
    Raises: ValueError: no images, training mode, or a similarity without spread.
    Source: arXiv:2606.00124, section 4.2.
    """
    if not len(images):
        raise ValueError("ssdc_by_depth needs at least one image")
    check_family(model)
    _check_eval(model)
    last = (len(model.blocks) if depths is None else depths) - 1
    run = model
    if hasattr(model, "forward_intermediates"):  # ends at the last block asked for
        run = partial(model.forward_intermediates, indices=[last], stop_early=True,
                      intermediates_only=True)  # fmt: skip
    with token_similarity(model, depths=depths) as similarity:
        for batch in images.split(BATCH):
            run(prepared(batch, model))
    grid = grid_of(model, images.shape[-2:])
    return pd.DataFrame(
        [(site, depth, ssdc(matrix, grid))
         for site, by_depth in similarity.mean().items() for depth, matrix in enumerate(by_depth)],
        columns=["site", "depth", "ssdc"],
    )  # fmt: skip


def ssdc_under_rpi(
    model: nn.Module, images: Tensor, orders: NDArray[np.int64], depths: int | None = None
) -> pd.DataFrame:
    """The RPI estimand: SSDC of all images under one order, averaged over the orders.

    Averaging S over the orders instead would not shrink the spread of one order.

    Args: orders: (orders, patches), each a permutation (`metrics.random_orders`).
    Returns: columns site, depth, ssdc.
    Raises: ValueError: as `ssdc_by_depth` and `permute_tokens`, or no orders.
    Source: arXiv:2606.00124, section 4.3; the mean over orders is ours.
    """
    if not len(orders):
        raise ValueError("ssdc_under_rpi needs at least one order")
    curves = []
    for order in tqdm(orders, "orders", disable=None, leave=False):
        with permute_tokens(model, order):
            curves.append(ssdc_by_depth(model, images, depths))
    return pd.concat(curves).groupby(["site", "depth"], as_index=False).mean()


def ssdc_per_image(
    model: nn.Module, images: Tensor, orders: NDArray[np.int64] | None = None
) -> pd.DataFrame:
    """Mean over images of each image's own SSDC: another quantity than that of the mean image.

    Args: orders: (images, patches) one order per image; None: in place.
    Returns: columns site, depth, ssdc.
    Raises: ValueError: as `ssdc_by_depth` and `permute_tokens`, or one order per image is missing.
    """
    if orders is not None and len(orders) != len(images):
        raise ValueError(f"{len(orders)} orders for {len(images)} images; give each its own")
    curves = []
    for i, image in enumerate(tqdm(images.split(1), "images", disable=None, leave=False)):
        with nullcontext() if orders is None else permute_tokens(model, orders[i]):
            curves.append(ssdc_by_depth(model, image))
    return pd.concat(curves).groupby(["site", "depth"], as_index=False).mean()


def anchoring_and_fragility(
    model: nn.Module,
    images: Tensor,
    orders: NDArray[np.int64],
    test: Split,
    disrupted: Tensor,
) -> dict[str, float]:
    """How anchored the model is and what a corruption costs it, in one row.

    Args: images, orders: as `ssdc_under_rpi`; test: for accuracy; disrupted: its images, corrupted.
    Returns: recovery (mean over depth >= 1 of SSDC under RPI, site `attn_input`),
        clean_accuracy, shifted_accuracy, fragility.
    Raises: ValueError: as `ssdc_under_rpi`, `accuracy` and `fragility`.
    """
    curve = ssdc_under_rpi(model, images, orders)
    after = curve[(curve["site"] == "attn_input") & (curve["depth"] > 0)]["ssdc"].mean()
    clean = accuracy(model, test.images, test.labels)
    shifted = accuracy(model, disrupted, test.labels)
    return {"recovery": float(after), "clean_accuracy": clean, "shifted_accuracy": shifted,
            "fragility": fragility(clean, shifted)}  # fmt: skip


@torch.inference_mode()
def ssdc_variants(model: nn.Module, images: Tensor) -> pd.DataFrame:
    """SSDC at `attn_input` under other choices than the published ones (cosine and L1).

    Args: as `ssdc_by_depth`.
    Returns: columns similarity (`cosine`, `centred`), norm (`l1`, `l2`), depth, ssdc.
    Raises: ValueError: as `ssdc_by_depth`.
    """
    check_family(model)
    _check_eval(model)
    grid, rows = grid_of(model, images.shape[-2:]), []
    for name in ("cosine", "centred"):
        with token_similarity(model, ["attn_input"], centred=name == "centred") as similarity:
            for batch in images.split(BATCH):
                model(prepared(batch, model))
        for depth, matrix in enumerate(similarity.mean()["attn_input"]):
            rows += [(name, norm, depth, ssdc(matrix, grid, norm)) for norm in ("l1", "l2")]
    return pd.DataFrame(rows, columns=["similarity", "norm", "depth", "ssdc"])


@torch.inference_mode()
def attention_by_head(model: nn.Module, images: Tensor) -> pd.DataFrame:
    """How local, how concentrated and how self-centred every head's attention is.

    Args: images: (n, 3, height, width) uint8; memory does not grow with n.
    Returns: columns depth, head, mad, mad_without_query, entropy, self_share, each the mean over
        queries and images; the class token takes no part.
    Raises: ValueError: as `ssdc_by_depth`, `attention_maps` and `mean_attention_distance`.
    Source: arXiv:2605.16390.
    """
    if not len(images):
        raise ValueError("attention_by_head needs at least one image")
    check_family(model)
    _check_eval(model)
    grid, sums = grid_of(model, images.shape[-2:]), defaultdict(float)

    def add(depth: int, maps: Tensor) -> None:
        maps = maps.cpu().numpy()
        found = (mean_attention_distance(maps, grid), mean_attention_distance(maps, grid, True),
                 attention_entropy(maps), self_attention_share(maps))  # fmt: skip
        sums[depth] += np.stack(found, axis=-1).sum(axis=0)  # (heads, 4)

    maps = model.blocks[0].attn.num_heads * (grid[0] * grid[1]) ** 2  # of one image, in one block
    with attention_maps(model, add):
        for batch in images.split(max(1, min(BATCH, MAPS // maps))):
            model(prepared(batch, model))
    rows = [(depth, head, *values / len(images))
            for depth, by_head in sums.items() for head, values in enumerate(by_head)]  # fmt: skip
    columns = ["depth", "head", "mad", "mad_without_query", "entropy", "self_share"]
    return pd.DataFrame(rows, columns=columns)


@torch.inference_mode()
def attention_from(
    model: nn.Module, images: Tensor, depth: int, head: int, query: int
) -> NDArray[np.float32]:
    """Where one patch looks: the attention of one head from it to every patch, image by image.

    Args: images: (n, 3, height, width) uint8; query: index of the patch, row by row.
    Returns: (n, rows, columns), each image's values summing to 1; the class token takes no part.
    Raises: ValueError: as `attention_by_head`, or no such block, head or patch.
    """
    check_family(model)
    _check_eval(model)
    grid = grid_of(model, images.shape[-2:])
    limits = (len(model.blocks), model.blocks[0].attn.num_heads, grid[0] * grid[1])
    for name, i, limit in zip(
        ("block", "head", "patch"), (depth, head, query), limits, strict=True
    ):
        if not 0 <= i < limit:
            raise ValueError(f"there is no {name} {i}; choose 0 to {limit - 1}")
    heard = {}
    with attention_maps(model, lambda block, maps: heard.update({block: maps[:, head, query]})):
        model(prepared(images, model))
    return heard[depth].cpu().numpy().reshape(-1, *grid)


def prepared(images: Tensor, model: nn.Module) -> Tensor:
    """uint8 images as the model takes them: its device, its precision, its own normalisation.

    timm's mean and deviation where the model has a `pretrained_cfg`, else the published ones.

    Raises: ValueError: the images are not (n, 3, height, width) uint8, or of another size.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images must be (n, 3, height, width) of uint8, as they are before normalisation, not "
            f"{tuple(images.shape)} of {images.dtype}"
        )
    embed = getattr(model, "patch_embed", None)
    found, size = tuple(images.shape[2:]), getattr(embed, "img_size", None)
    if size is not None and getattr(embed, "strict_img_size", False) and found != tuple(size):
        raise ValueError(f"the model takes {tuple(size)} pixels, not {found}")
    weight, config = next(model.parameters()), getattr(model, "pretrained_cfg", None) or {}
    mean, std = config.get("mean", MEAN), config.get("std", STD)
    return normalise(images.to(weight.device), mean, std).to(weight.dtype)


def _check_eval(model: nn.Module) -> None:
    if model.training:
        raise ValueError("the model is in training mode: dropout would be measured; call eval()")

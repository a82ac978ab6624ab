"""The authors' trained checkpoints (arXiv:2606.00124) as timm models, with equal outputs."""

import math
import re
from functools import partial
from pathlib import Path

import torch
from timm.models.eva import Eva
from torch import Tensor, nn

HEADS = 8  # the only size that no tensor tells
CONDITIONS = {"APE": "ape", "SPE": "spe", "ROPE": "rope", "RPT": "rpt", "ABLATED": "ablated"}


def published_condition(path: Path) -> str:
    """The condition that a checkpoint's name begins with, as in `APE1_imagenet_100_60`.

    The tensors do not tell: every checkpoint holds a table, also those that never used it.

    Raises: ValueError: another name.
    """
    name = re.match(r"[A-Za-z]+", path.name)
    if name is None or name[0].upper() not in CONDITIONS:
        raise ValueError(
            f"{path.name} does not begin with one of {', '.join(CONDITIONS)}; "
            "keep the published name"
        )
    return CONDITIONS[name[0].upper()]


def load_published(path: Path) -> Eva:
    """The model of a published checkpoint, in eval mode; `RPI` and the like are then ours.

    Read without executing code. All sizes come from the tensors, except for the 8 heads.

    Args: path: a torch file with the weights under the key `model`, under its published name.
    Raises: ValueError: another name, a file that cannot be read, or another layout; says which key.
    """
    condition = published_condition(path)
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)["model"]
    except Exception as error:  # what torch raises on other files has no common base
        raise ValueError(f"{path} holds no published checkpoint: {error}") from error
    try:
        return _build(weights, condition)
    except KeyError as error:
        raise ValueError(f"{path} has another layout than published: no tensor {error}") from error
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(f"{path} has tensors of another shape than published: {error}") from error


def _build(weights: dict[str, Tensor], condition: str) -> Eva:
    kernel, classes = weights["patcher.conv.weight"], len(weights["final_feed_forward.bias"])
    dim, patch = len(kernel), kernel.shape[-1]
    side = math.isqrt(weights["sincos_pe"].shape[1])
    depth = sum(name.endswith(".1.qkv.weight") for name in weights)
    model = Eva(
        img_size=side * patch, patch_size=patch, num_classes=classes, global_pool="token",
        embed_dim=dim, depth=depth, num_heads=HEADS, attn_type="rope", qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-5), use_post_transformer_norm=False,
        use_abs_pos_emb=condition in ("ape", "spe", "rpt"), use_rot_pos_emb=condition == "rope",
    )  # fmt: skip
    state = {"cls_token": weights["cls_token"], "patch_embed.proj.weight": kernel,
             "patch_embed.proj.bias": weights["patcher.conv.bias"],
             "head.weight": weights["final_feed_forward.weight"],
             "head.bias": weights["final_feed_forward.bias"]}  # fmt: skip
    if condition in ("ape", "rpt"):
        state["pos_embed"] = weights["pos_embedding.weight"][None]
    if condition == "spe":
        rows = [weights["cls_pos"].reshape(1, 1, dim), weights["sincos_pe"]]
        state["pos_embed"] = torch.cat(rows, dim=1)
    names = {"norm1": "encoder_layers.{}.0", "attn.qkv": "encoder_layers.{}.1.qkv",
             "attn.proj": "encoder_layers.{}.1.proj", "norm2": "feed_forward.{}.0",
             "mlp.fc1": "feed_forward.{}.1.0", "mlp.fc2": "feed_forward.{}.1.3"}  # fmt: skip
    for block in range(depth):
        for ours, theirs in names.items():
            for kind in ("weight", "bias"):
                tensor = weights[f"{theirs.format(block)}.{kind}"]
                if ours == "attn.qkv" and condition == "rope":
                    tensor = _reordered(tensor, dim)
                state[f"blocks.{block}.{ours}.{kind}"] = tensor
    model.load_state_dict(state)
    return model.eval()


def _reordered(qkv: Tensor, dim: int) -> Tensor:
    """Rows of queries and keys, head by head, from quarters to timm's interleaved pairs.

    Published: x first, then y, the two members of a pair a quarter apart; timm: y first, members
    side by side. Attention does not see an order that queries and keys share.
    """
    quarter = dim // HEADS // 4
    x, y = (torch.arange(quarter)[:, None] + torch.tensor([[0, quarter]]) + start
            for start in (0, 2 * quarter))  # fmt: skip
    head = torch.cat([y.flatten(), x.flatten()])
    rows = (torch.arange(HEADS)[:, None] * (dim // HEADS) + head).flatten()
    return torch.cat([qkv[rows], qkv[dim + rows], qkv[2 * dim :]])

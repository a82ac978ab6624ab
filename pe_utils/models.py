"""One timm `Eva` for every condition: the positional encoding is the only difference."""

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.eva import Eva
from torch import Tensor, nn

from pe_utils.config import RunConfig
from pe_utils.encodings import add_conv_position

BUILT = ("ablated", "untrained_ablated", "ape", "spe", "rpt", "rope", "conv")


def build_vit(config: RunConfig) -> Eva:
    """The untrained model of a run; the same seed gives all conditions the same other weights.

    Pre-norm blocks, class token, no normalisation before the head, GELU; `pos_embed` is
    (1, 1 + patches, dim) for ape, rpt (learned) and spe (fixed, class row learned), else None.
    With `init="published"` Linear and Conv layers have PyTorch's defaults and the learned table
    and the class token come from N(0, 1); with `init="timm"` everything is as timm draws it.

    Raises: ValueError: a condition whose encoding is not built here.
    Source: arXiv:2606.00124, sections 3 and 4.1, and its published code.
    """
    if config.condition not in BUILT:
        raise ValueError(f"build_vit has no encoding for the condition {config.condition!r}")
    with torch.random.fork_rng(devices=[]):
        model = Eva(
            img_size=config.image_size,
            patch_size=config.patch_size,
            num_classes=config.num_classes,
            global_pool="token",
            embed_dim=config.embed_dim,
            depth=config.depth,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            pos_drop_rate=config.dropout,
            attn_drop_rate=config.dropout,
            proj_drop_rate=config.dropout,
            drop_path_rate=config.drop_path,
            use_post_transformer_norm=False,
            use_abs_pos_emb=config.condition in ("ape", "spe", "rpt"),
            use_rot_pos_emb=config.condition == "rope",
            rope_temperature=config.rope_temperature,
        )
        torch.manual_seed(config.seed)
        _draw_weights(model, config.init)
    if model.pos_embed is not None:
        _draw_table(model, config)
    if config.condition == "conv":
        add_conv_position(model, config.seed)
    for block in model.blocks:
        block.attn.fused_attn = False  # bf16 on a CPU is faster without, and hooks see it
        block.attn.proj_drop.p = 0.0  # the published code drops out after the MLP only
    return model


def _draw_weights(model: Eva, init: str) -> None:
    """Everything but the positional table, in an order that does not depend on the condition."""
    table, model.pos_embed = model.pos_embed, None
    if init == "timm":
        model.init_weights()
    else:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.LayerNorm):
                module.reset_parameters()
        bound = model.embed_dim**-0.5
        for block in model.blocks:  # Eva keeps the biases of a fused qkv Linear apart
            nn.init.uniform_(block.attn.q_bias, -bound, bound)
            nn.init.uniform_(block.attn.v_bias, -bound, bound)
        nn.init.normal_(model.cls_token)
    model.pos_embed = table


@torch.no_grad()
def _draw_table(model: Eva, config: RunConfig) -> None:
    generator = torch.Generator().manual_seed(2**31 + config.seed)  # not the weights' stream
    if config.init == "timm":
        nn.init.trunc_normal_(model.pos_embed, std=0.02, generator=generator)
    else:
        model.pos_embed.normal_(generator=generator)
    if config.condition == "spe":
        model.pos_embed[0, 1:] = build_sincos2d_pos_embed(list(config.grid), config.embed_dim)
        model.pos_embed.register_hook(_only_class_row)


def _only_class_row(gradient: Tensor) -> Tensor:
    """Keep the sinusoidal rows fixed: only the class token's position learns."""
    return torch.cat([gradient[:, :1], torch.zeros_like(gradient[:, 1:])], dim=1)

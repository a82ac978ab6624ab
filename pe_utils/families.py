"""Which timm models can be taken apart: where their patch tokens are, and why others cannot."""

from timm.layers import PatchEmbed
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import nn

FAMILIES = (VisionTransformer, VisionTransformerRelPos, Eva, Beit, NaFlexVit)
accepted: set[type] = set()  # further classes that passed `selftest.verify` in this process
REASONS = {  # timm module to what stands in the way
    "cait": "its class token joins only after the patch blocks, whose attention mixes heads",
    "coat": "convolutional positions and several scales",
    "convit": "its positions sit inside a gated attention",
    "convnext": "a convolutional network",
    "crossvit": "two scales of patches",
    "davit": "attends within windows and over channels",
    "hiera": "pools its tokens",
    "levit": "a convolutional stem and pooled tokens",
    "maxxvit": "convolutions and attention within windows",
    "mlp_mixer": "no attention",
    "mvitv2": "pools queries and keys",
    "nest": "attends within blocks of the image",
    "pit": "pools its tokens",
    "resnet": "a convolutional network",
    "swin_transformer": "attends within windows",
    "swin_transformer_v2": "attends within windows",
    "tnt": "a transformer inside every patch",
    "twins": "attends within windows",
    "vision_transformer_hybrid": "a convolutional stem: its tokens share pixels",
    "vision_transformer_sam": "attends within windows",
    "vitamin": "a convolutional stem: its tokens share pixels",
    "volo": "attends within windows",
    "xcit": "attends over channels and convolves its tokens",
}


def check_family(model: nn.Module) -> None:
    """Refuse a model whose tokens cannot be followed from patch to patch.

    Raises: ValueError: names the model and the reason.
    """
    kind = type(model).__name__
    for inner in ("_orig_mod", "module"):  # of torch.compile and of DataParallel
        if inner in model._modules:
            raise ValueError(f"{kind} wraps a model; pass that one, model.{inner}")
    if not trusted(model):
        why = known_reason(model)
        if why is None:
            names = ", ".join(family.__name__ for family in FAMILIES)
            why = (
                f"not a plain timm {names}; if it is like one, try pe_utils.selftest.verify(model)"
            )
        raise ValueError(f"{kind} is not supported: {why}")
    if isinstance(model, NaFlexVit):
        return
    parts = ("patch_embed", "blocks", "num_prefix_tokens")
    if absent := [name for name in parts if not hasattr(model, name)]:
        raise ValueError(f"{kind} is not supported: it lacks timm's {', '.join(absent)}")
    embed = model.patch_embed
    if not isinstance(embed, PatchEmbed):
        raise ValueError(
            f"{kind} is not supported: its patch_embed is a {type(embed).__name__}, not a plain "
            f"PatchEmbed, so its tokens may share pixels"
        )


def trusted(model: nn.Module) -> bool:
    """Whether its class is one of timm's own families, or passed the self-test in this process."""
    own = type(model).__module__.startswith("timm.")
    return (own and isinstance(model, FAMILIES)) or type(model) in accepted


def known_reason(model: nn.Module) -> str | None:
    """Why timm models of this kind cannot be taken apart; None of a kind that is not known."""
    return REASONS.get(type(model).__module__.rpartition(".")[2])


def patch_tokens(model: nn.Module) -> nn.Module:
    """The module that puts out the patch tokens before any position enters.

    (batch, patches, dim) or, in models of dynamic size, (batch, rows, columns, dim).
    """
    return model.embeds.norm if isinstance(model, NaFlexVit) else model.patch_embed


def grid_of(model: nn.Module, image_size: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of patches that an image of (height, width) pixels is cut into."""
    embed = model.embeds if isinstance(model, NaFlexVit) else model.patch_embed
    return tuple(embed.dynamic_feat_size(tuple(image_size)))

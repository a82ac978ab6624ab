"""An encoding of one's own, beside the paper's."""

import torch
from timm.models.eva import Eva
from torch import Tensor, nn


class ConvPosition(nn.Module):
    """Adds to every patch token what a 3 x 3 depthwise convolution makes of its neighbours.

    Neighbours by index: the zero padding at the border tells where the grid ends, and content
    leaks to the tokens beside it. Takes (batch, prefix + patches, dim), prefix tokens untouched.

    Source: the conditional encoding of Chu et al., ICLR 2023, moved to the embedding.
    """

    def __init__(self, dim: int, grid: tuple[int, int], prefix: int) -> None:
        super().__init__()
        self.grid, self.prefix = grid, prefix
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, tokens: Tensor) -> Tensor:
        prefix, patches = tokens[:, : self.prefix], tokens[:, self.prefix :]
        image = patches.transpose(1, 2).unflatten(2, self.grid)
        return torch.cat([prefix, patches + self.conv(image).flatten(2).transpose(1, 2)], dim=1)


def add_conv_position(model: Eva, seed: int) -> None:
    """Put the encoding where an additive table would enter; the other weights stay as drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**31 + seed)
        grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
        model.pos_drop = nn.Sequential(ConvPosition(model.embed_dim, grid, prefix), model.pos_drop)

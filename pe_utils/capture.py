"""Token similarity and attention inside a timm ViT, reduced in the hooks: none is kept."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from timm.layers import DiffAttention
from torch import Tensor, nn

from pe_utils.families import check_family

SITES = ("attn_input", "block_input", "block_output")


class TokenSimilarity:
    """Running mean over images of the cosine similarity between patch tokens."""

    def __init__(self, sites: Sequence[str], depth: int, prefix: int, centred: bool) -> None:
        """Start at no image; `prefix` tokens at the start of a sequence are left out."""
        self.sites, self.depth, self.prefix, self.centred = tuple(sites), depth, prefix, centred
        self._sums: dict[tuple[str, int], NDArray[np.float64]] = {}
        self._images: Counter[tuple[str, int]] = Counter()

    def add(self, site: str, depth: int, tokens: Tensor) -> None:
        """Take in one batch, (batch, tokens, dim), prefix tokens included.

        Raises:
            ValueError: a patch token is zero or not finite (it has no direction), or the
                number of patches differs from the batches before.
        """
        key, patches = (site, depth), tokens.shape[1] - self.prefix
        # autocast would run the product in half precision
        with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
            content = tokens[:, self.prefix :].float()
            if self.centred:
                content = content - content.mean(dim=1, keepdim=True)
            norm = content.norm(dim=-1, keepdim=True)
            if not ((norm > 0) & (norm < torch.inf)).all():
                raise ValueError(
                    f"{site} at depth {depth}: a patch token is zero or not finite, so its "
                    f"cosine is undefined; check the weights and the images"
                )
            unit = content / norm
            gram = torch.bmm(unit, unit.transpose(1, 2)).sum(dim=0)
        if key not in self._sums:
            self._sums[key] = np.zeros((patches, patches))
        if len(self._sums[key]) != patches:
            raise ValueError(
                f"{patches} patches after batches of {len(self._sums[key])}; run one image size"
            )
        self._sums[key] += gram.cpu().numpy()
        self._images[key] += len(tokens)

    def mean(self) -> dict[str, NDArray[np.float64]]:
        """Similarity averaged over the images so far: {site: (depth, patches, patches)}.

        Raises:
            ValueError: no image has been run yet.
        """
        if not all(self._images[site, d] for site in self.sites for d in range(self.depth)):
            raise ValueError("no image has been run through the model; run it inside the context")
        return {
            site: np.stack([self._sums[site, d] / self._images[site, d] for d in range(self.depth)])
            for site in self.sites
        }


@contextmanager
def token_similarity(
    model: nn.Module,
    sites: Sequence[str] = SITES,
    depths: int | None = None,
    centred: bool = False,
) -> Iterator[TokenSimilarity]:
    """Average the patch tokens' cosine similarity over every image run in the body.

    Memory does not grow with the number of images; the model's output does not change.
    `attn_input` is what the block's attention receives (after the first LayerNorm of a pre-norm
    block), `block_input` and `block_output` are the token stream before and after the block.

        with token_similarity(model) as similarity:
            for images in batches:
                model(images)
        similarity.mean()["attn_input"]  # (depth, patches, patches)

    Args:
        model: a supported timm model (`pe_utils.families`); put it in eval mode yourself.
        sites: some of `SITES`.
        depths: listen to the first `depths` blocks only; to all by default.
        centred: subtract each image's mean patch token before taking the cosine.

    Raises:
        ValueError: another kind of model, an unknown site, a block without `attn`, or a number
            of depths the model does not have.

    Source: arXiv:2606.00124, section 4.2 (site `attn_input`).
    """
    _check(model, sites)
    depths = len(model.blocks) if depths is None else depths
    if not 1 <= depths <= len(model.blocks):
        raise ValueError(f"depths must lie between 1 and {len(model.blocks)}, not {depths}")
    similarity = TokenSimilarity(sites, depths, model.num_prefix_tokens, centred)
    with ExitStack() as hooks:
        for depth, block in enumerate(model.blocks[:depths]):
            for site in dict.fromkeys(sites):
                handle = _listen(block, site, partial(similarity.add, site, depth))
                hooks.callback(handle.remove)
        yield similarity


@contextmanager
def attention_maps(model: nn.Module, receive: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Hand every block's attention among the patches to `receive(depth, maps)`, batch by batch.

    maps: (batch, heads, queries, keys) float32. Prefix tokens (class token, registers) are left
    out as queries and keys and the rows renormalised, so that each sums to 1. The model's output
    does not change by a bit: where a block uses fused attention, which never shows its weights,
    they are computed once more beside it.

    Args:
        model: a supported timm model (`pe_utils.families`); put it in eval mode yourself.
        receive: called with the block's depth and the maps, which it must not keep or change.

    Raises:
        ValueError: another kind of model (windowed ones have no attention among all patches), or
            a block whose attention cannot be read, which may show only after the body.
    """
    _check(model, ["block_input"])
    for depth, block in enumerate(model.blocks):
        attn = getattr(block, "attn", None)
        known = isinstance(getattr(attn, "attn_drop", None), nn.Module)
        if not known or not hasattr(attn, "fused_attn") or isinstance(attn, DiffAttention):
            raise ValueError(
                f"block {depth} has a {type(attn).__name__}, whose attention cannot be read"
            )
    listeners = []
    with ExitStack() as hooks:
        for depth, block in enumerate(model.blocks):
            listener = _Listener(block.attn, receive, depth, model.num_prefix_tokens)
            listeners.append(listener)
            weights = block.attn.attn_drop.register_forward_pre_hook(listener.hear)
            hooks.callback(weights.remove)
            whole = block.attn.register_forward_hook(listener.again, with_kwargs=True)
            hooks.callback(whole.remove)
        yield
    for listener in listeners:
        if listener.ran and not listener.heard:
            raise ValueError(
                f"block {listener.depth} computes attention weights that never pass its "
                "`attn_drop`, so they cannot be read"
            )


class _Listener:
    """Hears one block's attention weights, once per batch, whoever else listens."""

    def __init__(
        self, attn: nn.Module, receive: Callable[[int, Tensor], None], depth: int, prefix: int
    ) -> None:
        self.receive, self.depth, self.prefix = receive, depth, prefix
        self.fused, self.heads, self.asked = attn.fused_attn, attn.num_heads, False
        self.ran = self.heard = False

    def hear(self, _drop: nn.Module, args: tuple) -> None:
        if self.fused and not self.asked:  # another listener's doing
            return
        self.heard, weights = True, args[0].detach()
        if weights.ndim != 4 or weights.shape[1] != self.heads:
            raise ValueError(
                f"block {self.depth} has {self.heads} heads, but attention of shape "
                f"{tuple(weights.shape)}, which cannot be read as one map per head"
            )
        maps = weights[:, :, self.prefix :, self.prefix :].float()
        share = maps.sum(dim=-1, keepdim=True)
        if not (share > 0).all():
            raise ValueError(
                f"block {self.depth}: a patch attends to class token or registers only, so its "
                "attention among the patches is undefined"
            )
        self.receive(self.depth, maps / share)

    def again(self, attn: nn.Module, args: tuple, kwargs: dict, _output: Tensor) -> None:
        """Compute a fused attention once more, step by step, so that its weights pass `hear`."""
        self.ran = True
        if not self.fused or not attn.fused_attn:
            return
        self.asked, attn.fused_attn = True, False
        try:
            with torch.no_grad():
                attn.forward(*args, **kwargs)
        finally:
            self.asked, attn.fused_attn = False, True


def _listen(block: nn.Module, site: str, add: partial) -> torch.utils.hooks.RemovableHandle:
    if site == "block_output":
        return block.register_forward_hook(lambda _module, _args, output: add(output))
    module = block.attn if site == "attn_input" else block
    return module.register_forward_pre_hook(lambda _module, args: add(args[0]))


def _check(model: nn.Module, sites: Sequence[str]) -> None:
    check_family(model)
    if isinstance(sites, str) or not sites or set(sites) - set(SITES):
        raise ValueError(f"sites must be some of {SITES}, not {sites!r}")
    for depth, block in enumerate(model.blocks):
        if "attn_input" in sites and not isinstance(getattr(block, "attn", None), nn.Module):
            raise ValueError(
                f"block {depth} is a {type(block).__name__} without `attn`; leave out attn_input"
            )

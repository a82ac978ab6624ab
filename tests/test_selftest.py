import pytest
import timm
import torch
from timm.layers import PatchEmbed
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import nn

from pe_utils import families
from pe_utils.evaluate import attention_by_head, ssdc_by_depth, ssdc_under_rpi
from pe_utils.families import check_family
from pe_utils.interventions import permute_tokens, scale_positions
from pe_utils.metrics import random_orders
from pe_utils.selftest import REFUSED, SAMPLES, SMALL, refused, supported, verify

IMAGES = torch.randint(0, 256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(0))
IMAGES = IMAGES.to(torch.uint8)


class Plain(nn.Module):
    """A Vision Transformer as somebody else might write it: not one of timm's classes."""

    num_prefix_tokens = 0

    def __init__(self, where="front"):
        super().__init__()
        torch.manual_seed(0)
        self.where = where
        self.patch_embed = PatchEmbed(32, 8, 3, 16)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, 16))
        self.hidden = nn.Parameter(torch.randn(1, 16, 16))
        self.weak = nn.Parameter(torch.full((16,), 1e-6))
        self.blocks = nn.ModuleList(Block(16, 2, init_values=None) for _ in range(2))
        self.head = nn.Linear(16, 5)
        if where == "tied":
            self.blocks = nn.ModuleList([self.blocks[0]] * 2)
        if where == "silent":
            for block in self.blocks:
                block.attn = Silent(16, 2)
        if where == "last":
            self.num_prefix_tokens = 1

    def forward(self, images):
        x = self.patch_embed(images)
        if self.where == "before":  # positions that enter with the pixels
            x = self.patch_embed(images + torch.linspace(0, 9, 32))
        x = x + self.pos_embed
        if self.where == "scan":  # along a curve of its own
            x = x[:, torch.randperm(16, generator=torch.Generator().manual_seed(3))]
        if self.where in ("last", "uncounted"):  # its class token
            x = torch.cat([x, x.mean(dim=1, keepdim=True)], dim=1)
        for block in [*self.blocks] * (2 if self.where == "looped" else 1):
            x = block(x)
            if self.where == "hidden":
                x = x + self.hidden
            if self.where == "weak":  # as behind a LayerScale that has just begun to learn
                x = x + self.weak * self.hidden
            if self.where == "broken":
                raise RuntimeError("a bug of its own")
        if self.where == "noisy":
            x = x + torch.rand(())
        out = self.head(x.mean(dim=1))
        return {"logits": out} if self.where == "dict" else out


class Silent(Attention):
    def forward(self, x, **_):
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class PositionsEverywhere(VisionTransformer):
    """timm's class, changed in a way that `forward_intermediates` does not know of."""

    def forward_features(self, images, **_):
        x = self._pos_embed(self.patch_embed(images))
        for block in self.blocks:
            x = block(x + self.pos_embed)
        return self.norm(x)


@pytest.fixture(autouse=True)
def nobody_accepted_yet():
    families.accepted.clear()
    yield
    families.accepted.clear()


def test_a_class_never_seen_is_refused_then_verified_then_measured():
    model = Plain().eval()
    with pytest.raises(ValueError, match=r"Plain is not supported: .*selftest.verify\(model\)"):
        check_family(model)
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    verify(model)
    assert all(torch.equal(w, weights[name]) for name, w in model.state_dict().items())
    assert ssdc_by_depth(model, IMAGES)["depth"].max() == 1
    assert len(ssdc_under_rpi(model, IMAGES, random_orders(16, 2, 0), depths=1)) == 3
    assert len(attention_by_head(model, IMAGES)) == 4
    with scale_positions(model, 0.5), permute_tokens(model, torch.arange(16)):
        model(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("hidden", r"with all positions found \(table\) at 0, the order of tokens still matters"),
        ("before", "permuting its tokens is not the same as permuting the image's patches"),
        ("weak", "the order of tokens still matters: it has other positions, or mixes"),
        ("broken", "a bug of its own"),
        ("scan", "token i that block 0 sees, after 0 prefix tokens, is not patch i"),
        ("last", "token i that block 0 sees, after 1 prefix tokens, is not patch i"),
        ("uncounted", "its blocks see 17 tokens, not 16 patches and num_prefix_tokens=0"),
        ("tied", "its 2 blocks run 4 times in one pass"),
        ("looped", "its 2 blocks run 4 times in one pass"),
        ("silent", "block 0 computes attention weights that never pass its `attn_drop`"),
        ("dict", "its forward must return one tensor, not a dict"),
        ("noisy", "measuring it changes its output|the same as permuting"),
    ],
)
def test_a_class_that_fails_stays_refused(where, message):
    model = Plain(where).eval()
    with pytest.raises(ValueError, match=f"Plain cannot be probed: .*({message})"):
        verify(model)
    assert not families.accepted
    with pytest.raises(ValueError, match="Plain is not supported"):
        check_family(model)


def test_a_class_made_from_one_of_timms_is_tested_too():
    model = PositionsEverywhere(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    for run in (ssdc_by_depth, attention_by_head):
        with pytest.raises(ValueError, match=r"PositionsEverywhere is not supported: .*verify"):
            run(model.eval(), IMAGES)
    with pytest.raises(ValueError, match="its forward_intermediates does not compute what its for"):
        verify(model)
    with pytest.raises(ValueError, match="PositionsEverywhere is not supported"):
        ssdc_by_depth(model, IMAGES)


def test_what_is_no_vision_transformer_of_timms_layout_says_what_it_lacks():
    with pytest.raises(ValueError, match=r"lacks timm's patch_embed, blocks, num_prefix_tokens"):
        verify(nn.Sequential(nn.Linear(1, 1)).eval())
    model = timm.create_model("test_vit").eval()
    with pytest.raises(ValueError, match=r"DataParallel wraps a model; pass that one, model\.mod"):
        verify(nn.DataParallel(model).eval())
    with pytest.raises(ValueError, match=r"OptimizedModule wraps a model; .* model\._orig_mod"):
        verify(torch.compile(model))


def test_a_failed_class_does_not_lose_what_passed_before():
    verify(Plain().eval())
    with pytest.raises(ValueError, match="cannot be probed"):
        verify(Plain("hidden").eval())
    assert Plain in families.accepted


def test_training_mode_and_a_class_without_patches_are_refused():
    with pytest.raises(ValueError, match=r"training mode; call eval\(\)"):
        verify(Plain().train())
    with pytest.raises(ValueError, match="Sequential cannot be probed"):
        verify(nn.Sequential(nn.Linear(1, 1)).eval())


def test_the_families_listed_pass_and_the_others_say_why():
    rows = supported()
    assert rows["family"].tolist() == list(SAMPLES)
    assert len(rows) >= 18
    positions = set(", ".join(rows["positions"]).split(", "))
    assert positions == {"table", "rotary", "bias"}
    others = refused()
    assert others["example"].tolist() == list(REFUSED)
    assert len(others) >= 8
    assert (others["reason"].str.len() > 8).all()
    assert not others["reason"].str.contains("not a plain timm").any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_passes_and_hides_nothing(dtype):
    verify(timm.create_model("test_vit").eval().to(dtype))
    with pytest.raises(ValueError, match="order of tokens still matters"):
        verify(Plain("weak").eval().to(dtype))


class Wrapped(nn.Module):
    """Somebody's model around one of timm's, whose positions are not where they are looked for."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.patch_embed = inner, inner.patch_embed
        self.blocks, self.num_prefix_tokens = inner.blocks, inner.num_prefix_tokens
        self.pretrained_cfg = inner.pretrained_cfg

    def forward(self, images):
        return self.inner(images)


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_224", "vit_small_patch16_dinov3"])
def test_positions_that_random_weights_hide_are_found(name):
    inner = timm.create_model(name, **SMALL)
    with pytest.raises(ValueError, match="order of tokens still matters"):
        verify(Wrapped(inner).eval())


def test_pixels_beyond_the_last_whole_patch_stay_where_they_are():
    verify(timm.create_model("vit_so400m_patch14_siglip_384", **SMALL).eval())


def test_a_naflex_model_that_never_said_its_size_is_asked_for_it():
    config = NaFlexVitCfg(patch_size=8, embed_dim=32, depth=2, num_heads=2, pos_embed="none")
    model = NaFlexVit(config, num_classes=5).eval()
    with pytest.raises(ValueError, match="nothing tells the size of its images"):
        verify(model)
    model.pretrained_cfg = {"input_size": (3, 32, 32)}
    verify(model)


def test_an_image_that_is_not_square_passes():
    small = dict(embed_dim=32, depth=2, num_heads=2, img_size=(32, 64))
    model = timm.create_model("vit_tiny_patch16_224", **small).eval()
    verify(model)

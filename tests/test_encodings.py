import pytest
import torch

from pe_utils.encodings import ConvPosition
from pe_utils.interventions import permute_tokens
from pe_utils.models import build_vit


def encoding(weight):
    layer = ConvPosition(dim=2, grid=(2, 3), prefix=1)
    with torch.no_grad():
        layer.conv.weight.copy_(weight.expand(2, 1, 3, 3))
        layer.conv.bias.zero_()
    return layer


@torch.no_grad()
def test_neighbours_by_index_are_added_and_the_class_token_is_not():
    tokens = torch.randn(4, 7, 2, generator=torch.Generator().manual_seed(0))
    centre, right = torch.zeros(2, 3, 3)
    centre[1, 1], right[1, 2] = 1, 1
    doubled = encoding(centre)(tokens)
    assert torch.equal(doubled[:, 0], tokens[:, 0])
    assert torch.allclose(doubled[:, 1:], 2 * tokens[:, 1:])
    added = encoding(right)(tokens)[:, 1:] - tokens[:, 1:]
    assert torch.allclose(added[:, [0, 1, 3, 4]], tokens[:, 1:][:, [1, 2, 4, 5]], atol=1e-6)
    assert torch.equal(added[:, [2, 5]], torch.zeros(4, 2, 2))  # nothing beyond the border


@torch.inference_mode()
def test_the_condition_conv_is_ablated_with_a_convolution(tiny):
    conv, ablated = build_vit(tiny("conv")).eval(), build_vit(tiny("ablated")).eval()
    weights = conv.state_dict()
    own = [name for name in weights if name not in ablated.state_dict()]
    assert own == ["pos_drop.0.conv.weight", "pos_drop.0.conv.bias"]
    assert all(torch.equal(w, weights[name]) for name, w in ablated.state_dict().items())
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    with permute_tokens(conv, order):
        shuffled = conv(images)
    assert not torch.allclose(shuffled, conv(images), atol=1e-4)
    other = build_vit(tiny("conv", seed=1)).state_dict()[own[0]]
    assert not torch.equal(other, weights[own[0]])
    assert weights[own[0]].abs().max().item() == pytest.approx(1 / 3, rel=0.05)  # 1 / sqrt(9)

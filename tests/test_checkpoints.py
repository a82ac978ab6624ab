import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pe_utils.checkpoints import load_published
from pe_utils.interventions import permute_tokens
from pe_utils.selftest import verify

DIM, HEADS, DEPTH, PATCH, SIDE, CLASSES = 64, 8, 2, 4, 3, 5
IMAGES = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH, generator=torch.Generator().manual_seed(1))


def published_weights():
    """Random tensors in the published layout."""
    torch.manual_seed(0)
    sizes = {"cls_token": (1, 1, DIM), "cls_pos": (1, 1, DIM), "sincos_pe": (1, SIDE**2, DIM),
             "pos_embedding.weight": (SIDE**2 + 1, DIM),
             "patcher.conv.weight": (DIM, 3, PATCH, PATCH), "patcher.conv.bias": (DIM,),
             "final_feed_forward.weight": (CLASSES, DIM),
             "final_feed_forward.bias": (CLASSES,)}  # fmt: skip
    for i in range(DEPTH):
        for name, shape in {f"encoder_layers.{i}.0": (DIM,), f"feed_forward.{i}.0": (DIM,),
                            f"encoder_layers.{i}.1.qkv": (3 * DIM, DIM),
                            f"encoder_layers.{i}.1.proj": (DIM, DIM),
                            f"feed_forward.{i}.1.0": (4 * DIM, DIM),
                            f"feed_forward.{i}.1.3": (DIM, 4 * DIM)}.items():  # fmt: skip
            sizes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {name: torch.randn(shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
            for name, shape in sizes.items()}  # fmt: skip


def published_forward(w, condition, images, order=None):
    """The published model in our words: pre-norm blocks, whole biases, quarters rotated."""
    x = F.conv2d(images, w["patcher.conv.weight"], w["patcher.conv.bias"], PATCH).flatten(2).mT
    x = x if order is None else x[:, order]
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], dim=1)
    if condition in ("APE", "RPT"):
        x = x + w["pos_embedding.weight"]
    elif condition == "SPE":
        x = x + torch.cat([w["cls_pos"], w["sincos_pe"]], dim=1)

    def rotated(t):
        quarter = DIM // HEADS // 4
        places = torch.stack([torch.arange(SIDE**2) % SIDE, torch.arange(SIDE**2) // SIDE])
        angles = places[..., None] * 10000.0 ** (-torch.arange(quarter) / quarter)
        parts = t[:, :, 1:].split(quarter, dim=-1)
        turned = []
        for axis in (0, 1):
            a, b, angle = parts[2 * axis], parts[2 * axis + 1], angles[axis]
            turned += [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        return torch.cat([t[:, :, :1], torch.cat(turned, dim=-1)], dim=2)

    for i in range(DEPTH):
        layer, mlp = f"encoder_layers.{i}", f"feed_forward.{i}"
        y = F.layer_norm(x, (DIM,), w[f"{layer}.0.weight"], w[f"{layer}.0.bias"])
        qkv = F.linear(y, w[f"{layer}.1.qkv.weight"], w[f"{layer}.1.qkv.bias"])
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        if condition == "RoPE":
            q, k = rotated(q), rotated(k)
        a = (q @ k.mT / (DIM // HEADS) ** 0.5).softmax(dim=-1) @ v
        x = x + F.linear(a.transpose(1, 2).flatten(2), w[f"{layer}.1.proj.weight"],
                         w[f"{layer}.1.proj.bias"])  # fmt: skip
        y = F.layer_norm(x, (DIM,), w[f"{mlp}.0.weight"], w[f"{mlp}.0.bias"])
        y = F.gelu(F.linear(y, w[f"{mlp}.1.0.weight"], w[f"{mlp}.1.0.bias"]))
        x = x + F.linear(y, w[f"{mlp}.1.3.weight"], w[f"{mlp}.1.3.bias"])
    return F.linear(x[:, 0], w["final_feed_forward.weight"], w["final_feed_forward.bias"])


@pytest.fixture
def saved(tmp_path):
    weights = published_weights()

    def save(name):
        torch.save({"model": weights, "epoch": 60}, tmp_path / name)
        return tmp_path / name, weights

    return save


@torch.inference_mode()
@pytest.mark.parametrize("condition", ["APE", "SPE", "RoPE", "RPT", "ablated"])
def test_a_published_checkpoint_gives_the_published_outputs(saved, condition):
    path, weights = saved(f"{condition}1_imagenet_100_60")
    model = load_published(path)
    wanted = published_forward(weights, condition, IMAGES)
    assert torch.allclose(model(IMAGES), wanted, atol=1e-5)
    order = torch.randperm(SIDE**2, generator=torch.Generator().manual_seed(2))
    with permute_tokens(model, order):
        shuffled = model(IMAGES)
    assert torch.allclose(shuffled, published_forward(weights, condition, IMAGES, order), atol=1e-5)
    if condition != "ablated":
        assert not torch.allclose(shuffled, wanted, atol=1e-3)


def test_another_name_another_file_and_another_layout_are_refused(saved, tmp_path):
    path, weights = saved("APE1_imagenet_100_60")
    with pytest.raises(ValueError, match="best_model does not begin with one of APE, SPE, ROPE"):
        load_published(path.rename(tmp_path / "best_model"))
    (tmp_path / "RoPE2_imagenet_100_60").write_bytes(b"no torch file")
    with pytest.raises(ValueError, match="holds no published checkpoint"):
        load_published(tmp_path / "RoPE2_imagenet_100_60")
    del weights["cls_pos"]
    path, _ = saved("SPE1_imagenet_100_60")
    with pytest.raises(ValueError, match="another layout than published: no tensor 'cls_pos'"):
        load_published(path)


def test_a_tensor_of_another_shape_is_refused(saved):
    path, weights = saved("APE1_imagenet_100_60")
    weights["pos_embedding.weight"] = weights["pos_embedding.weight"][1:]
    torch.save({"model": weights}, path)
    with pytest.raises(ValueError, match="tensors of another shape than published"):
        load_published(path)


class Hostile:
    def __reduce__(self):
        return print, ("executed",)


def test_a_checkpoint_never_executes_code(tmp_path, capsys):
    path = tmp_path / "APE1_imagenet_100_60"
    torch.save({"model": Hostile()}, path)
    with pytest.raises(ValueError, match="holds no published checkpoint"):
        load_published(path)
    assert capsys.readouterr().out == ""


def test_a_published_model_passes_the_self_test(saved):
    path, _ = saved("SPE1_imagenet_100_60")
    model = load_published(path)
    assert isinstance(model.blocks[0].norm1, nn.LayerNorm)
    verify(model)

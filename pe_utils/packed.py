"""Images decoded once into one folder of uint8 arrays that are mapped into memory, never copied.

A folder holds `<split>.npy`, (images, 3, height, width), and `meta.json`: the digest of the files
that were decoded, a checksum of every array, and one of itself. It takes its name only when it is
whole.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from pe_utils.storage import alone, write_atomically

BLOCK = 512  # images between two notes of how far decoding has come
CHUNK = 2**24  # bytes written at a time
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, Image.DecompressionBombError)


class ImageFile(Protocol):
    """A file somewhere: on disk, in a zip, in a row of a table."""

    name: str

    def read_bytes(self) -> bytes: ...


Files = Mapping[str, Sequence[tuple[str, ImageFile]]]  # split to (class, file)


def packed(
    folder: Path, files: Files, orders: Mapping[str, Sequence[int]], size: tuple[int, int]
) -> tuple[dict[str, Tensor], str]:
    """The images of a packed folder, which is made, or made anew where it is damaged.

    Decoding uses every core, shows its progress and goes on where it was cut; a second process
    waits for the first.

    Args:
        files: in the order of the digest.
        orders: for each split the order that its images are stored in.
        size: (height, width) in pixels; other sizes are resized without cropping.

    Returns: split to (images, 3, height, width) uint8; the digest, 16 hex digits over split, class,
        name and bytes of every file.

    Raises:
        ValueError: a file is no image; names it.
        OSError: the disk is too small; says for what.
    """
    with alone(folder.with_name(f"{folder.name}.lock")):
        if folder.exists() and (broken := _damaged(folder)):
            warnings.warn(f"{broken} is damaged: decoding the images again", stacklevel=2)
            shutil.rmtree(folder)
        if not folder.exists():
            _pack(folder, files, orders, size)
    arrays = {split: np.load(folder / f"{split}.npy", mmap_mode="c") for split in files}
    digest = json.loads((folder / "meta.json").read_text())[1]["digest"]
    return {split: torch.from_numpy(array) for split, array in arrays.items()}, digest


def _damaged(folder: Path) -> Path | None:
    """The first file that is not what was written."""
    try:
        written, meta = json.loads((folder / "meta.json").read_text())
        if written != _sha256_of(meta):
            raise ValueError
    except (OSError, ValueError, TypeError):
        return folder / "meta.json"
    for name, wanted in meta["sha256"].items():
        if not (folder / name).exists() or _sha256(folder / name) != wanted:
            return folder / name
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta).encode()).hexdigest()


def _pack(
    folder: Path, files: Files, orders: Mapping[str, Sequence[int]], size: tuple[int, int]
) -> None:
    part, digest = folder.with_name(f"{folder.name}.part"), hashlib.sha256()
    part.mkdir(parents=True, exist_ok=True)
    for split, paths in files.items():
        places = np.argsort(np.asarray(orders[split]))  # of each file in the stored order
        _pack_split(part / f"{split}.npy", split, paths, places, size, digest)
    sums = {f"{split}.npy": _sha256(part / f"{split}.npy") for split in files}
    meta = {"digest": digest.hexdigest()[:16], "sha256": sums}
    text = json.dumps([_sha256_of(meta), meta])
    write_atomically(part / "meta.json", text)
    for note in part.glob("*.done"):
        note.unlink()
    os.replace(part, folder)


def _pack_split(path: Path, split: str, files: Sequence, places: np.ndarray, size, digest) -> None:
    """Decode a split from where `<split>.done` says it was cut; earlier files are only hashed."""
    note = path.with_suffix(".done")
    done = int(note.read_text()) if note.exists() else 0
    images = _array(path, (len(files), 3, *size), "r+" if done else "w+")

    def one(index: int) -> bytes:
        content = files[index][1].read_bytes()
        if index >= done:
            images[places[index]] = decoded(content, files[index][1], size).transpose(2, 0, 1)
        return content

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        progress = tqdm(total=len(files), desc=f"decoding {split}", disable=None)
        for start in range(0, len(files), BLOCK):
            block = range(start, min(start + BLOCK, len(files)))
            for index, content in zip(block, pool.map(one, block), strict=True):
                label, file = files[index]
                digest.update(f"{split}/{label}/{file.name}\0".encode() + content)
                progress.update()
            images.flush()
            if block.stop > done:
                write_atomically(note, str(block.stop))
        progress.close()


def _array(path: Path, shape: tuple[int, ...], mode: str) -> np.memmap:
    """An array on disk; a new one is filled, so that a full disk is an error and no crash later."""
    array = np.lib.format.open_memmap(path, mode, np.uint8, shape=shape)
    if mode == "r+":
        return array
    try:
        with open(path, "r+b") as file:
            file.seek(array.offset)
            for start in range(0, array.nbytes, CHUNK):
                file.write(bytes(min(CHUNK, array.nbytes - start)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        path.unlink()
        raise OSError(
            errno.ENOSPC,
            f"the decoded images need {array.nbytes / 1e9:.2f} GB in {path.parent}; make room, or "
            "set PE_HOME to a folder on another disk",
        ) from error
    return array


def decoded(content: bytes, name: object, size: tuple[int, int]) -> np.ndarray:
    """An image file's pixels, (height, width, 3) uint8, resized without cropping.

    Raises: ValueError: no image; says `name`.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            image = image.convert("RGB")
    except UNREADABLE as error:
        raise ValueError(f"{name} cannot be read as an image: {error}") from error
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)

import hashlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from pe_utils import packed as module
from pe_utils.packed import decoded, packed

SIZE = (8, 12)
BIG = """
import sys
from pathlib import Path
from pe_utils import packed
packed.BLOCK = 4
root = Path(sys.argv[1])
files = {"train": [("a", p) for p in sorted(root.glob("*.png"))]}
packed.packed(root / "to", files, {"train": range(len(files["train"]))}, (8, 12))
"""


@pytest.fixture
def files(tmp_path):
    """Twenty training and three test images, of random pixels."""
    rng, found = np.random.default_rng(0), {}
    for split, n in (("train", 20), ("test", 3)):
        found[split] = []
        for i in range(n):
            path = tmp_path / f"{split}{i:02d}.png"
            Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(path)
            found[split].append((f"class{i % 2}", path))
    return found


@pytest.fixture
def orders():
    return {"train": list(range(20))[::-1], "test": [1, 2, 0]}


def test_images_stand_in_the_order_asked_for_and_the_digest_is_of_the_files(
    files, orders, tmp_path
):
    images, digest = packed(tmp_path / "to", files, orders, SIZE)
    for split, order in orders.items():
        assert images[split].dtype == torch.uint8
        for image, i in zip(images[split], order, strict=True):
            pixels = torch.from_numpy(np.array(Image.open(files[split][i][1])))
            assert torch.equal(image, pixels.permute(2, 0, 1))
    sha = hashlib.sha256()
    for split, paths in files.items():
        for label, path in paths:
            sha.update(f"{split}/{label}/{path.name}\0".encode() + path.read_bytes())
    assert digest == sha.hexdigest()[:16]


def test_a_second_opening_decodes_nothing(files, orders, tmp_path):
    first, digest = packed(tmp_path / "to", files, orders, SIZE)
    for paths in files.values():
        for _, path in paths:
            path.unlink()
    again, same = packed(tmp_path / "to", files, orders, SIZE)
    assert same == digest
    assert torch.equal(again["train"], first["train"])


def test_changing_an_opened_image_does_not_change_the_file(files, orders, tmp_path):
    packed(tmp_path / "to", files, orders, SIZE)[0]["train"].zero_()
    assert packed(tmp_path / "to", files, orders, SIZE)[0]["train"].sum() > 0


@pytest.mark.parametrize("name", ["train.npy", "test.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_folder_is_named_and_made_anew(files, orders, tmp_path, name, damage):
    first, digest = packed(tmp_path / "to", files, orders, SIZE)
    first = {split: images.clone() for split, images in first.items()}
    path = tmp_path / "to" / name
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-20])
    else:
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.warns(UserWarning, match=rf"{name} is damaged: decoding the images again"):
        again, same = packed(tmp_path / "to", files, orders, SIZE)
    assert same == digest
    assert all(torch.equal(again[split], first[split]) for split in first)


def test_decoding_goes_on_where_it_was_cut(files, orders, tmp_path, monkeypatch):
    whole, digest = packed(tmp_path / "whole", files, orders, SIZE)
    monkeypatch.setattr(module, "BLOCK", 4)
    path = files["train"][13][1]
    content = path.read_bytes()
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"train13\.png cannot be read as an image"):
        packed(tmp_path / "to", files, orders, SIZE)
    assert not (tmp_path / "to").exists()
    path.write_bytes(content)
    seen = []
    monkeypatch.setattr(module, "decoded", lambda *a: seen.append(a[1]) or decoded(*a))
    images, same = packed(tmp_path / "to", files, orders, SIZE)
    assert same == digest
    assert all(torch.equal(images[split], whole[split]) for split in whole)
    assert sorted(seen) == [p for paths in (files["test"], files["train"][12:]) for _, p in paths]


def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(300):
        pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:03d}.png")
    command = [sys.executable, "-c", BIG, tmp_path]
    process = subprocess.Popen(command)
    note = tmp_path / "to.part" / "train.done"
    while not note.exists() and process.poll() is None:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "to").exists()
    twice = [subprocess.Popen(command) for _ in range(2)]  # one works, the other waits
    assert [process.wait() for process in twice] == [0, 0]
    images = np.load(tmp_path / "to" / "train.npy")
    for i in (0, 150, 299):
        content = (tmp_path / f"{i:03d}.png").read_bytes()
        assert (images[i] == decoded(content, i, SIZE).transpose(2, 0, 1)).all()
    assert sorted(p.name for p in tmp_path.glob("to*")) == ["to", "to.lock"]

import hashlib
import http.server
import io
import json
import pickle
import threading
import zipfile
from functools import partial

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from pe_utils import data, sources
from pe_utils.config import ROOT
from pe_utils.data import augment, load, random_resized_crop


def write_folder(root, classes=("a", "b"), test="val", n=10, size=(32, 32)):
    rng = np.random.default_rng(0)
    for split, count in (("train", n), (test, 3)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


def test_photos_need_nothing_and_split_by_region():
    photos = load("photos", (32, 32))
    assert [len(s) for s in (photos.train, photos.held_out, photos.test)] == [540, 60, 240]
    assert photos.train.images.dtype == torch.uint8
    assert photos.test.labels.bincount().tolist() == [40] * 6
    again = load("photos", (32, 32))
    assert torch.equal(photos.test.images, again.test.images)
    assert load("photos", (16, 48)).train.images.shape[2:] == (16, 48)


@pytest.mark.parametrize("test", ["val", "test"])
def test_a_folder_is_read_decoded_once_and_kept_apart(home, tmp_path, test):
    root = write_folder(tmp_path / "images", test=test)
    first = load("image_folder", (32, 32), root)
    assert first.classes == ("a", "b")
    assert (len(first.train), len(first.held_out), len(first.test)) == (18, 2, 6)
    pixels = np.array(Image.open(root / "train" / "b" / "3.png"))
    wanted = torch.from_numpy(pixels).permute(2, 0, 1)
    trained = torch.cat([first.train.images, first.held_out.images])
    labels = torch.cat([first.train.labels, first.held_out.labels])
    assert labels[(trained == wanted).all(dim=(1, 2, 3))].tolist() == [1]
    (folder,) = (home / "runs" / "cache").glob("*[!k]")
    assert sorted(p.name for p in folder.iterdir()) == ["meta.json", "test.npy", "train.npy"]
    again = load("image_folder", (32, 32), root)
    assert again.digest == first.digest
    assert torch.equal(again.test.images, first.test.images)


def test_the_digest_follows_the_bytes_not_the_place(home, tmp_path):
    a = load("image_folder", (32, 32), write_folder(tmp_path / "a"))
    b = load("image_folder", (32, 32), write_folder(tmp_path / "elsewhere" / "b"))
    assert a.digest == b.digest
    path = tmp_path / "a" / "train" / "a" / "0.png"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(path)
    assert load("image_folder", (32, 32), tmp_path / "a").digest != b.digest


def test_the_data_root_is_the_argument_then_the_variable(home, tmp_path, monkeypatch):
    write_folder(tmp_path / "one", classes=("a", "b"))
    write_folder(tmp_path / "two", classes=("a", "b", "c"))
    monkeypatch.setenv("PE_DATA", str(tmp_path / "two"))
    assert len(load("image_folder", (32, 32)).classes) == 3
    assert len(load("image_folder", (32, 32), tmp_path / "one").classes) == 2


def test_the_classes_of_ones_own_folder_are_counted(home, tmp_path):
    root = write_folder(tmp_path / "images", classes=("a", "b", "c"))
    configs = data.runs("own", ["ape", "untrained_ablated"], [1, 2], root)
    assert [(c.condition, c.seed) for c in configs] == [
        ("ape", 1), ("untrained_ablated", 1), ("ape", 2), ("untrained_ablated", 2)
    ]  # fmt: skip
    assert {c.num_classes for c in configs} == {3}
    other = data.runs("own", ["ape"], [1], write_folder(tmp_path / "b", ("a", "b", "c"), n=9))
    assert other[0].run_id != configs[0].run_id  # another folder is another run
    assert data.default_images(configs[0], "ssdc", root) == 9
    assert data.default_images(data.runs("laptop", ["ape"], [1])[0], "ssdc") == 1000
    with pytest.raises(ValueError, match="nothing to run"):
        data.runs("smoke", ["ape"], [])
    with pytest.raises(ValueError, match=r"each only once: .* seeds \[0, 0\]"):
        data.runs("smoke", ["ape"], [0, 0])


def test_relative_folders_start_from_the_repository(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    with pytest.raises(FileNotFoundError, match=f"looked for {ROOT}/nowhere/train"):
        load("image_folder", (32, 32), "nowhere")
    monkeypatch.setenv("PE_HOME", "scratch")
    assert data.home() == ROOT / "scratch"
    monkeypatch.delenv("PE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=f"looked for {ROOT}/data/train"):
        load("image_folder", (32, 32))


def test_missing_or_odd_folders_say_what_was_looked_for(home, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/cifar10-jpeg/train .* PE_DATA"):
        load("cifar10_jpeg", (32, 32), tmp_path / "nowhere")
    root = write_folder(tmp_path / "images")
    (root / "val" / "c").mkdir()
    Image.new("RGB", (8, 8)).save(root / "val" / "c" / "0.png")
    with pytest.raises(ValueError, match=r"\['c'\] have images in only one of train and val"):
        load("image_folder", (32, 32), root)
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        load("imagenet", (32, 32), root)


def test_another_cifar10_jpeg_is_refused(home, tmp_path):
    write_folder(tmp_path / "cifar10-jpeg", test="test")
    with pytest.raises(
        ValueError, match=r"cifar10_jpeg in .* has digest \w+, but .* unpack it afresh"
    ):
        load("cifar10_jpeg", (32, 32), tmp_path)


def write_tiny(root, classes=("n1", "n2"), listed=None):
    """The public layout, two training images and one validation image a class."""
    base = root / "tiny-imagenet-200"
    (base / "val" / "images").mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i, name in enumerate(classes):
        (base / "train" / name / "images").mkdir(parents=True)
        for path in (base / "train" / name / "images" / f"{name}_0.JPEG",
                     base / "train" / name / "images" / f"{name}_1.JPEG",
                     base / "val" / "images" / f"val_{9 - i}.JPEG"):  # fmt: skip
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
        rows.append(f"val_{9 - i}.JPEG\t{name}\t0\t0\t9\t9")
    (base / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    (base / "wnids.txt").write_text("\n".join(listed or classes) + "\n")
    return base


def zip_tiny(base, to):
    to.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(to, "w") as archive:
        for path in sorted(base.rglob("*.*")):
            archive.write(path, path.relative_to(base.parent))
    return to


def test_tiny_imagenet_is_the_same_as_a_folder_and_as_a_zip(home, tmp_path):
    base = write_tiny(tmp_path / "a")
    folder = load("tiny_imagenet", (64, 64), tmp_path / "a")
    assert folder.classes == ("n1", "n2")
    assert (len(folder.train), len(folder.held_out), len(folder.test)) == (3, 1, 2)
    want = torch.from_numpy(np.array(Image.open(base / "val" / "images" / "val_8.JPEG")))
    found = (folder.test.images == want.permute(2, 0, 1)).all(dim=(1, 2, 3))
    assert folder.test.labels[found].tolist() == [1]  # val_8 belongs to the second class
    zip_tiny(base, tmp_path / "b" / "tiny-imagenet-200.zip")
    zipped = load("tiny_imagenet", (64, 64), tmp_path / "b")
    assert zipped.digest == folder.digest
    assert torch.equal(zipped.train.images, folder.train.images)


def test_a_part_of_tiny_imagenet_is_named_when_it_is_absent(home, tmp_path):
    write_tiny(tmp_path)
    with pytest.raises(ValueError, match=r"wnids.txt lists no n01443537, n01784675"):
        load("tiny_imagenet_20", (64, 64), tmp_path)
    write_tiny(tmp_path / "twenty", classes=sources.TINY_20)
    with pytest.raises(ValueError, match=r"tiny_imagenet_20 in .* has digest .* should be 9ab3c97"):
        load("tiny_imagenet_20", (64, 64), tmp_path / "twenty")


def test_tiny_imagenet_is_downloaded_once_and_checked(home, tmp_path, monkeypatch):
    archive = zip_tiny(write_tiny(tmp_path), tmp_path / "served" / "tiny-imagenet-200.zip")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=archive.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        monkeypatch.setattr(sources, "TINY_URL", url)
        with pytest.raises(FileNotFoundError, match=r"download failed .*orrupt.* another machine"):
            load("tiny_imagenet", (64, 64), tmp_path / "to")
        assert not list((tmp_path / "to").iterdir())
        monkeypatch.setattr(sources, "TINY_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
        first = load("tiny_imagenet", (64, 64), tmp_path / "to")
        server.shutdown()
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["tiny-imagenet-200.zip"]
    assert load("tiny_imagenet", (64, 64), tmp_path / "to").digest == first.digest
    with pytest.raises(FileNotFoundError, match=f"no Tiny-ImageNet: .* fetch {url} .* PE_DATA"):
        load("tiny_imagenet", (64, 64), tmp_path / "elsewhere")


def test_a_broken_image_is_named_and_nothing_half_decoded_is_read(home, tmp_path):
    root = write_folder(tmp_path / "images")
    (root / "train" / "a" / "5.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"train/a/5\.png cannot be read as an image"):
        load("image_folder", (32, 32), root)
    with pytest.raises(ValueError, match=r"train/a/5\.png cannot be read as an image"):
        load("image_folder", (32, 32), root)
    with pytest.raises(
        ValueError, match=r"5\.png .*; repair it, remove it, or leave it out by a l"
    ):
        load("image_folder", (32, 32), root)
    (root / "skip.txt").write_text("train/a/5.png\n")
    left_out = load("image_folder", (32, 32), root)
    assert len(left_out.train) == 17
    (root / "skip.txt").unlink()
    (root / "train" / "a" / "5.png").unlink()
    assert load("image_folder", (32, 32), root).digest == left_out.digest
    (root / "skip.txt").write_text("train/a/5.png\n")
    with pytest.raises(ValueError, match=r"skip\.txt lists 'train/a/5\.png', which is no file"):
        load("image_folder", (32, 32), root)


def test_augmentation_draws_for_each_image_and_only_moves_pixels():
    image = torch.arange(3 * 32 * 32).view(1, 3, 32, 32) + 1
    out = augment(image.repeat(64, 1, 1, 1), torch.Generator().manual_seed(0))
    assert len({tuple(o.flatten().tolist()) for o in out}) > 40
    for one in out:
        kept = one[one > 0]
        assert len(kept) >= 3 * 28 * 28
        assert len(kept.unique()) == len(kept)
        steps = one[0, 8:24, 8:24].diff(dim=1).unique()
        assert steps.tolist() in ([1], [-1])  # flipped or not, never mixed
    again = augment(image.repeat(64, 1, 1, 1), torch.Generator().manual_seed(0))
    assert torch.equal(out, again)


def test_resized_crops_are_windows_of_the_image_drawn_for_each(home):
    rows, cols = torch.meshgrid(torch.arange(32.0), torch.arange(64.0), indexing="ij")
    image = torch.stack([rows * 8, cols * 4, torch.full((32, 64), 7.0)]).round().to(torch.uint8)
    batch = image.repeat(300, 1, 1, 1)
    out = random_resized_crop(batch, torch.Generator().manual_seed(0))
    assert out.shape == batch.shape
    assert out.dtype == torch.uint8
    assert (out[:, 2] == 7).all()
    red, green = out[:, 0].float(), out[:, 1].float()
    assert (red.std(dim=2).max(), green.std(dim=1).max()) < (0.5, 0.5)  # axis-parallel windows
    height = (red[:, -1, 0] - red[:, 0, 0]) / 248
    width = (green[:, 0, -1] - green[:, 0, 0]) / 252
    assert 0.4 < (width < 0).float().mean() < 0.6  # flipped
    area = height * width.abs()
    assert (area.min() > 0.05, area.max() <= 1) == (True, True)
    assert area.mean() == pytest.approx(0.54, abs=0.06)
    again = random_resized_crop(batch, torch.Generator().manual_seed(0))
    assert torch.equal(out, again)


def test_normalise_uses_the_published_mean_and_deviation():
    white = data.normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    assert white[0, :, 0, 0].tolist() == pytest.approx([2.2489, 2.4286, 2.64], abs=1e-3)


@pytest.mark.parametrize("n", [0, 241, -1])
def test_more_images_than_there_are_is_refused(n):
    with pytest.raises(ValueError, match="the number of images must lie between 1 and 240"):
        load("photos", (32, 32)).test.first(n)


def write_cifar100(root):
    """A small archive in the public layout, unpacked; returns the checksums it has."""
    folder, sums = root / "cifar-100-python", {}
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    contents = {
        split: {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8),
                "fine_labels": [i % 100 for i in range(n)]}
        for split, n in (("train", 200), ("test", 100))
    } | {"meta": {"fine_label_names": [f"class{i}" for i in range(100)]}}  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    return contents, sums


def test_cifar100_is_read_through_torchvision(home, tmp_path, monkeypatch):
    contents, sums = write_cifar100(tmp_path)
    monkeypatch.setattr(data.CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(data.CIFAR100, "test_list", [["test", sums["test"]]])
    meta = data.CIFAR100.meta | {"md5": sums["meta"]}
    monkeypatch.setattr(data.CIFAR100, "meta", meta)
    found = load("cifar100", (32, 32), tmp_path)
    assert (len(found.train), len(found.held_out), len(found.test)) == (180, 20, 100)
    assert len(found.classes) == 100
    first = int((found.test.labels == 7).nonzero())
    pixels = contents["test"]["data"][7].reshape(3, 32, 32)
    assert torch.equal(found.test.images[first], torch.from_numpy(pixels))
    small = load("cifar100", (16, 24), tmp_path)
    assert small.test.images.shape == (100, 3, 16, 24)
    assert small.digest == found.digest


def test_cifar100_that_is_not_there_says_how_to_get_it(home, tmp_path, monkeypatch):
    monkeypatch.setattr(data.CIFAR100, "url", (tmp_path / "nothing.tar.gz").as_uri())
    with pytest.raises(FileNotFoundError, match=r"no CIFAR-100: looked for .* the download failed"):
        load("cifar100", (32, 32), tmp_path)


def write_parquet(folder, rng):
    """ImageNet-100 as the hub has it: shards of rows (image, label), names in the metadata."""
    folder.mkdir(parents=True)
    names = ["zebra", "ant"]
    info = {"info": {"features": {"label": {"names": names}}}}
    pixels = {}
    for split, counts in (("train", (3, 4)), ("validation", (2, 0))):
        for shard, n in enumerate(counts):
            rows = []
            for i in range(n):
                image = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                stream = io.BytesIO()
                Image.fromarray(image).save(stream, "PNG")
                rows.append({"image": {"bytes": stream.getvalue(), "path": None}, "label": i % 2})
                pixels[split, shard, i] = image
            image_type = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
            schema = pyarrow.schema({"image": image_type, "label": pyarrow.int64()},
                                    metadata={"huggingface": json.dumps(info)})  # fmt: skip
            table = pyarrow.Table.from_pylist(rows, schema)
            name = f"{split}-{shard:05d}-of-00002.parquet"
            pyarrow.parquet.write_table(table, folder / name, row_group_size=2)
    return pixels


def test_imagenet_100_is_read_from_the_hubs_parquet_files(home, tmp_path):
    pixels = write_parquet(tmp_path / "imagenet-100" / "data", np.random.default_rng(0))
    found = load("imagenet_100", (32, 32), tmp_path)
    assert found.classes == ("000 zebra", "001 ant")  # the hub's order, not the alphabet's
    assert (len(found.train), len(found.held_out), len(found.test)) == (6, 1, 2)
    seen = torch.cat([found.train.images, found.held_out.images, found.test.images])
    labels = torch.cat([found.train.labels, found.held_out.labels, found.test.labels])
    for (_, _, i), image in pixels.items():
        same = (seen == torch.from_numpy(image).permute(2, 0, 1)).all(dim=(1, 2, 3))
        assert labels[same].tolist() == [i % 2]


def test_imagenet_100_is_read_from_folders_or_says_what_it_wants(home, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"imagenet-100/train .* clane9/imagenet-100"):
        load("imagenet_100", (32, 32), tmp_path)
    write_folder(tmp_path / "imagenet-100")
    assert load("imagenet_100", (32, 32), tmp_path).classes == ("a", "b")

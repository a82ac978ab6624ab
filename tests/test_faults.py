"""Kills, full disks and damaged files. `make test-long` tries each many more times."""

import hashlib
import http.server
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from accelerate import Accelerator
from safetensors.torch import load_file

from pe_utils import results
from pe_utils.config import ROOT, preset_config
from pe_utils.data import load
from pe_utils.train import TrainingRun, load_model, train

LONG = "PE_LONG" in os.environ
KILLS = 50 if LONG else 1
TRAIN = ("-m", "pe_utils.train", "--preset", "smoke", "--condition", "rope", "--jobs", "1")
MEASURE = """
from pe_utils import results
from pe_utils.config import preset_config
from pe_utils.data import load
from pe_utils.evaluate import accuracy, ssdc_by_depth
from pe_utils.train import load_model
configs = [preset_config("smoke", c, 0) for c in ("ape", "rope")]
test = load("photos", (32, 32)).test
for images in range(10, 25):
    for config in results.missing("accuracy", configs, images=images):
        some, model = test.first(images), load_model(config)
        right = accuracy(model, some.images, some.labels)
        results.add("accuracy", config, [{"accuracy": right}], images=images)
    for config in results.missing("ssdc", configs, images=images):  # asked for on its own
        some, model = test.first(images), load_model(config)
        results.add("ssdc", config, ssdc_by_depth(model, some.images), images=images)
"""


def finish(*arguments: str, home: Path) -> subprocess.CompletedProcess:
    env = os.environ | {"PE_HOME": str(home)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def kill(*arguments: str, home: Path, after: float) -> None:
    """Start in a group of its own and kill all of it, after some seconds."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, start_new_session=True,
                               env=os.environ | {"PE_HOME": str(home)},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    time.sleep(after)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tensors(home: Path) -> dict[str, bytes]:
    """Of every finished run; what no run can repeat (its minutes) is left out."""
    found = {}
    for path in sorted(home.glob("weights/smoke/*.safetensors")):
        found |= {f"{path.name} {k}": v.numpy().tobytes() for k, v in load_file(path).items()}
    return found


def table(home: Path, name: str) -> pd.DataFrame:
    rows = pd.read_csv(home / "results" / "smoke" / f"{name}.csv")
    return rows.drop(columns=["images_per_second", "minutes"], errors="ignore")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A home with two trained runs, and the seconds that one takes."""
    home = tmp_path_factory.mktemp("unbroken")
    began = time.monotonic()
    assert finish(*TRAIN, home=home).returncode == 0
    seconds = time.monotonic() - began
    more = ("-m", "pe_utils.train", "--preset", "smoke", "--condition", "ape", "--jobs", "1")
    assert finish(*more, home=home).returncode == 0
    return home, seconds


@pytest.fixture
def trained(unbroken, tmp_path, monkeypatch):
    """A copy of that home, to be damaged."""
    home = shutil.copytree(unbroken[0], tmp_path / "home")
    monkeypatch.setenv("PE_HOME", str(home))
    return home


def moments(seconds: float) -> list[float]:
    draw = random.Random(0)
    return [draw.uniform(0, seconds) for _ in range(KILLS)]


def test_training_killed_anywhere_ends_with_the_same_bytes(unbroken, tmp_path):
    whole, seconds = unbroken
    for i, after in enumerate(moments(seconds)):
        home = tmp_path / str(i)
        kill(*TRAIN, home=home, after=after)
        assert finish(*TRAIN, home=home).returncode == 0
        wanted = {k: v for k, v in tensors(whole).items() if k.startswith("rope")}
        assert tensors(home) == wanted
        log = table(whole, "training").query("condition == 'rope'").reset_index(drop=True)
        assert table(home, "training").equals(log)
        assert not list(home.glob("runs/smoke/*/checkpoint.pt"))


def test_measuring_killed_anywhere_ends_with_the_same_bytes(unbroken, tmp_path):
    whole = shutil.copytree(unbroken[0], tmp_path / "whole")
    began = time.monotonic()
    assert finish("-c", MEASURE, home=whole).returncode == 0
    seconds = time.monotonic() - began
    for i, after in enumerate(moments(seconds)):
        home = shutil.copytree(unbroken[0], tmp_path / str(i))
        kill("-c", MEASURE, home=home, after=after)
        assert finish("-c", MEASURE, home=home).returncode == 0
        for name in ("accuracy.csv", "ssdc.csv", "manifest.json"):
            path = Path("results") / "smoke" / name
            assert (home / path).read_bytes() == (whole / path).read_bytes()


def test_a_chapter_killed_anywhere_leaves_the_one_that_was(unbroken):
    path = ROOT / "book" / "chapters" / "01_ablated_emergence.ipynb"
    before = path.read_bytes()
    for after in moments(20):
        kill("-m", "pe_utils.chapters", "01_ablated_emergence", home=ROOT, after=after)
        assert path.read_bytes() == before
    assert not [p for p in path.parent.iterdir() if p.suffix != ".ipynb"]


def test_a_book_build_killed_anywhere_is_built_by_the_same_command(tmp_path):
    command = str(Path(sys.executable).with_name("jupyter-book"))
    build = (command, "build", "book", "--all", "-W", "--keep-going", "--path-output",
             str(tmp_path))  # fmt: skip
    index = tmp_path / "_build" / "html" / "index.html"
    for after in moments(15)[:25]:
        kill(*build, home=ROOT, after=after)
        index.unlink(missing_ok=True)  # as make book does
        assert finish(*build, home=ROOT).returncode == 0
        assert index.exists()


DOWNLOAD = """
import sys
from pathlib import Path
from pe_utils import sources
sources.TINY_URL, sources.TINY_MD5 = sys.argv[1:3]
sources._download_tiny(Path(sys.argv[3]))
"""


def test_a_download_killed_anywhere_leaves_nothing_that_is_read(tmp_path):
    content = random.Random(0).randbytes(2_000_000)

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):
                for start in range(0, len(content), 100_000):
                    self.wfile.write(content[start : start + 100_000])
                    time.sleep(0.1)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/tiny-imagenet-200.zip"
        to = tmp_path / "tiny-imagenet-200.zip"
        command = ("-c", DOWNLOAD, url, hashlib.md5(content).hexdigest(), str(tmp_path))
        for after in moments(6):
            kill(*command, home=tmp_path, after=after)
            assert not to.exists() or to.read_bytes() == content
            assert finish(*command, home=tmp_path).returncode == 0
            assert [p.name for p in tmp_path.iterdir()] == [to.name]
            assert to.read_bytes() == content
            to.unlink()
        server.shutdown()


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 4
    path.write_bytes(content)


def cut(path: Path, place: float) -> None:
    path.write_bytes(path.read_bytes()[: int(place * path.stat().st_size)])


PLACES = [i / 50 for i in range(50)] if LONG else [0.0, 0.1, 0.97]
CASES = [(harm, place) for harm in (flip, cut) for place in PLACES]
damage = pytest.mark.parametrize(("harm", "place"), CASES)


@damage
def test_damaged_weights_are_named_and_not_used(trained, harm, place):
    config = preset_config("smoke", "ape", 0)
    harm(config.weights_path, place)
    with pytest.raises(ValueError, match=config.weights_path.name):
        load_model(config)


@damage
def test_a_damaged_table_is_named_and_not_used(trained, harm, place):
    config = preset_config("smoke", "ape", 0)
    harm(results.folder("smoke") / "training.csv", place)
    with pytest.raises(ValueError, match=r"training\.csv is not as it was written"):
        results.read("training", [config])


@damage
def test_a_damaged_checkpoint_is_named_and_not_used(home, tiny, monkeypatch, harm, place):
    config, photos = tiny(), load("photos", (32, 32))
    train(config, photos)
    whole = tensors(home)
    monkeypatch.setenv("PE_HOME", str(home / "again"))
    run = TrainingRun(config, photos, Accelerator(cpu=True))
    run.one_step()
    run.step = 1
    run._save()
    harm(run.checkpoint, place)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged; remove it to train"):
        train(config, photos)
    run.checkpoint.unlink()
    train(config, photos)
    assert tensors(home / "again") == whole


@pytest.mark.parametrize("text", ["", "{", '{"runs": ', "\0" * 40])
def test_a_damaged_manifest_is_named(trained, text):
    (results.folder("smoke") / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        results.read("training", [preset_config("smoke", "ape", 0)])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, which can be made larger or read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(*options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(disk)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if not mount("size=700k"):
        pytest.skip("only root can mount a small disk")
    yield disk, mount
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_an_error_and_more_room_goes_on(unbroken, small_disk):
    disk, mount = small_disk
    done = finish(*TRAIN, home=disk)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "No space left on device: " in done.stderr.splitlines()[-1]
    assert "goes on from there" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert mount("remount", "size=50m")
    assert finish(*TRAIN, home=disk).returncode == 0
    assert tensors(disk) == {k: v for k, v in tensors(unbroken[0]).items() if k.startswith("rope")}
    assert mount("remount", "ro")
    done = finish(*TRAIN, "--seed", "1", home=disk)
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr.splitlines()[-1]
    assert mount("remount", "rw")


def test_weights_do_not_depend_on_the_surroundings(unbroken, tmp_path):
    change = {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "OMP_NUM_THREADS": "2"}
    env = os.environ | {"PE_HOME": str(tmp_path / "home")} | change
    command = [sys.executable, *TRAIN]
    assert subprocess.run(command, cwd=tmp_path, env=env, capture_output=True).returncode == 0
    wanted = {k: v for k, v in tensors(unbroken[0]).items() if k.startswith("rope")}
    assert tensors(tmp_path / "home") == wanted

"""Speed side by side, each as a ratio measured in one run: `python benchmarks/speed.py`.

Writes `speed.csv`, `machine.csv` and `growth.csv` beside this file (on a GPU into `gpu/`) and the
book's figure of growth. Never part of the tests: timings of a shared machine decide nothing. Run it
on a quiet one; the names of rows (or `growth`) as arguments run those alone.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: its threads wait for each other on a busy core

import datetime
import io
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import spearmanr
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tvf

from pe_utils.capture import TokenSimilarity, token_similarity
from pe_utils.config import ROOT, preset_config
from pe_utils.corruptions import corrupt
from pe_utils.data import MEAN, STD, load
from pe_utils.evaluate import prepared, ssdc_under_rpi
from pe_utils.metrics import grid_distance, random_orders, ssdc
from pe_utils.models import build_vit
from pe_utils.packed import packed
from pe_utils.results import code_version
from pe_utils.storage import write_atomically

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TO = Path(__file__).parent / ("gpu" if DEVICE == "cuda" else "")
ROUNDS = 5
COLUMNS = ["what", "against", "ours, s", "other, s", "ratio", "lowest", "highest", "error", "aim",
           "met"]  # fmt: skip
GENERATOR = torch.Generator().manual_seed(0)


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def against(ours: Callable, theirs: Callable, rounds: int = ROUNDS) -> dict[str, float]:
    """Both in turn, after one round of each that does not count; the ratio is theirs / ours."""
    ours(), theirs()
    pairs = np.array([(seconds(ours), seconds(theirs)) for _ in range(rounds)])
    ratios = pairs[:, 1] / pairs[:, 0]
    ours, other = np.median(pairs, axis=0)
    return {"ours, s": ours, "other, s": other, "ratio": np.median(ratios),
            "lowest": ratios.min(), "highest": ratios.max()}  # fmt: skip


def published_ssdc(tokens: Tensor, distance: np.ndarray) -> float:
    """As the published code has it: the whole batch at once, scipy on the upper triangle."""
    unit = torch.nn.functional.normalize(tokens[:, 1:], dim=-1)
    similarity = (unit @ unit.transpose(1, 2)).mean(dim=0).cpu().numpy()
    above = np.triu_indices(len(distance), 1)
    return spearmanr(similarity[above], -distance[above]).statistic


def our_ssdc(stream: list[Tensor], grid: tuple[int, int]) -> list[float]:
    similarity = TokenSimilarity(["attn_input"], len(stream), prefix=1, centred=False)
    for depth, tokens in enumerate(stream):
        for batch in tokens.split(50):
            similarity.add("attn_input", depth, batch)
    return [ssdc(matrix, grid) for matrix in similarity.mean()["attn_input"]]


def gram(stream: list[Tensor]) -> None:
    for tokens in stream:
        for batch in tokens[:, 1:].split(50):
            torch.bmm(batch, batch.transpose(1, 2))


def token_stream(depth=12, images=256, grid=(14, 14), dim=384) -> list[Tensor]:
    shape = (images, grid[0] * grid[1] + 1, dim)
    return [torch.randn(shape, generator=GENERATOR).to(DEVICE) for _ in range(depth)]


def ssdc_of_all_depths() -> dict:
    stream, distance = token_stream(), grid_distance((14, 14))
    return against(lambda: our_ssdc(stream, (14, 14)),
                   lambda: [published_ssdc(tokens, distance) for tokens in stream])  # fmt: skip


def ssdc_over_gram() -> dict:
    stream = token_stream()
    return against(lambda: our_ssdc(stream, (14, 14)), lambda: gram(stream))


def half_gram() -> dict:
    """The Gram matrices in bfloat16, accumulated in float32 by the hardware."""
    stream = [torch.nn.functional.normalize(tokens, dim=-1) for tokens in token_stream()]
    half = [tokens.bfloat16() for tokens in stream]
    error = max(float((h[:50] @ h[:50].mT - t[:50] @ t[:50].mT).abs().max())
                for h, t in zip(half, stream, strict=True))  # fmt: skip
    return against(lambda: gram(half), lambda: gram(stream)) | {"error": error}


def laptop_model() -> torch.nn.Module:
    return build_vit(preset_config("laptop", "ape", 1)).eval().to(DEVICE)


def some_images(n: int) -> Tensor:
    return torch.randint(0, 256, (n, 3, 32, 32), generator=GENERATOR, dtype=torch.uint8)


def training_batch() -> tuple[Tensor, Tensor]:
    images = torch.randn(128, 3, 32, 32, generator=GENERATOR)
    return images.to(DEVICE), torch.randint(0, 10, (128,), generator=GENERATOR).to(DEVICE)


def ssdc_image_by_image() -> dict:
    similarities = torch.randn(200, 196, 384, generator=GENERATOR)
    similarities = torch.nn.functional.normalize(similarities, dim=-1)
    similarities = torch.bmm(similarities, similarities.transpose(1, 2)).double().numpy()
    distance, above = grid_distance((14, 14)), np.triu_indices(196, 1)

    def scipys() -> None:
        for similarity in similarities:
            spearmanr(similarity[above], -distance[above])

    return against(lambda: [ssdc(s, (14, 14)) for s in similarities], scipys)


def rpi_estimand() -> dict:
    model, images, orders = laptop_model(), some_images(1000), random_orders(64, 4, 0)

    def passes() -> None:
        with torch.inference_mode():
            for _ in orders:
                for batch in images.split(50):
                    model(prepared(batch, model))

    return against(lambda: ssdc_under_rpi(model, images, orders), passes, rounds=3)


def capture() -> dict:
    model = timm.create_model("vit_small_patch16_224").eval().to(DEVICE)
    images = torch.randn(16, 3, 224, 224, generator=GENERATOR).to(DEVICE)

    @torch.inference_mode()
    def heard() -> None:
        with token_similarity(model, ["attn_input"]):
            model(images)

    return against(heard, torch.inference_mode()(lambda: model(images)), rounds=3)


def training() -> dict:
    images, labels = training_batch()

    def step_of(precision: str, fused: bool) -> Callable[[], None]:
        model = laptop_model().train()
        optimizer = torch.optim.AdamW(model.parameters())
        for block in model.blocks:
            block.attn.fused_attn = fused

        def step() -> None:
            with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bfloat16"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return against(step_of("bfloat16", fused=False), step_of("float32", fused=True))


def training_over_products() -> dict:
    """Against the bf16 matrix products of one step alone, in the shapes that the step has."""
    model = laptop_model().train()
    images, labels = training_batch()
    tokens, dim, heads, depth = 128 * 65, 96, 3, 6

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()

    def half(*shape: int) -> Tensor:
        return torch.randn(shape, generator=GENERATOR).bfloat16().to(DEVICE)

    linear = [(half(tokens, k), half(k, n), half(tokens, n))
              for k, n in ((dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim))]  # fmt: skip
    query, weights = half(128 * heads, 65, dim // heads), half(128 * heads, 65, 65)

    def products() -> None:
        for _ in range(depth):
            for x, w, y in linear:  # forward, gradient of the input, gradient of the weights
                x @ w, y @ w.T, x.T @ y
            for _ in range(3):  # queries by keys, weights by values, each with two gradients
                query @ query.transpose(1, 2), weights @ query

    return against(step, products)


def jpeg() -> dict:
    images = load("photos", (32, 32)).test.images.repeat(10, 1, 1, 1)
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize(MEAN, STD)])  # fmt: skip
    pictures = [tvf.to_pil_image(image) for image in images]

    def one_by_one() -> None:
        done = []
        for picture in pictures:
            stored = io.BytesIO()
            picture.save(stored, "JPEG", quality=5)
            done.append(to_tensor(Image.open(stored).convert("RGB")))
        torch.stack(done)

    model = laptop_model()
    return against(lambda: prepared(corrupt(images, "jpeg_q5"), model), one_by_one)


def second_opening() -> dict:
    folder = Path(tempfile.mkdtemp())
    try:
        files = []
        for i, image in enumerate(some_images(2000)):
            path = folder / f"{i}.jpg"
            tvf.to_pil_image(image).save(path, quality=75)
            files.append(("a", path))
        given = {"train": files}, {"train": range(len(files))}, (32, 32)
        packed(folder / "packed", *given)

        def decode() -> None:
            shutil.rmtree(folder / "again", ignore_errors=True)
            packed(folder / "again", *given)

        return against(lambda: packed(folder / "packed", *given), decode, rounds=3)
    finally:
        shutil.rmtree(folder)


def command(name: str, *words: str | Path, **environment: str) -> None:
    """Run a tool of this environment."""
    tool = Path(sys.executable).with_name(name)
    environment = os.environ | environment
    subprocess.run([tool, *words], cwd=ROOT, check=True, capture_output=True, env=environment)


def make_book() -> dict:
    words = ("jupyter-book", "build", "book", "--all", "-W", "--keep-going", "--path-output")
    return {"ours, s": seconds(lambda: command(*words, tempfile.mkdtemp()))}


def chapters_at_smoke() -> dict:
    home, chapters = tempfile.mkdtemp(), sorted((ROOT / "book" / "chapters").glob("*.ipynb"))

    def run() -> None:
        for chapter in chapters:
            command("papermill", "--no-progress-bar", chapter, f"{home}/out.ipynb",
                    "-p", "preset", "smoke", PE_HOME=home)  # fmt: skip

    return {"ours, s": seconds(run)}


ROWS = {  # function to: what; against what; the aim, a ratio at least or seconds at most
    ssdc_of_all_depths: ("SSDC of 12 depths x 256 images x 196 tokens x 384",
                         "the published code's way: whole batch, a spearmanr per depth", 1.0),
    ssdc_over_gram: ("the same", "its Gram matrices alone", 1 / 1.3),
    half_gram: ("Gram matrices in bfloat16", "in float32; of use if no entry is off by 1e-5", 2.0),
    ssdc_image_by_image: ("SSDC of 200 similarity matrices of 196 patches, exactly",
                          "scipy's spearmanr in a loop", 3.5),
    rpi_estimand: ("SSDC under RPI: 4 orders x 1,000 images, all depths and sites, preset laptop",
                   "4 plain passes in float32", None),
    capture: ("a pass of ViT-S at 224 px, SSDC of all depths captured", "the pass alone", 1 / 1.15),
    training: ("a training step, preset laptop: bfloat16, attention not fused",
               "float32 with timm's default, fused attention", 2.3),
    training_over_products: ("the same", "its matrix products alone, in bfloat16", None),
    jpeg: ("JPEG of 2,400 images of 32 px, to model input",
           "Pillow and torchvision image by image", 3.0),
    second_opening: ("opening 2,000 images of 32 px again, with checksum", "decoding them", 20.0),
    make_book: ("building the book, environment ready", "seconds", 20.0),
    chapters_at_smoke: ("all chapters at preset smoke, sharing runs", "seconds", 240.0),
}  # fmt: skip


def growth() -> pd.DataFrame:
    """Seconds of SSDC as one size doubles, the others fixed."""
    rows, base = [], dict(depth=4, images=200, grid=(8, 8), dim=192)
    steps = {"images": [("images", n) for n in (100, 200, 400, 800)],
             "tokens": [("grid", (side, side)) for side in (6, 8, 12, 16)],
             "width": [("dim", n) for n in (96, 192, 384, 768)],
             "depth": [("depth", n) for n in (2, 4, 8, 16)]}  # fmt: skip
    for name, values in steps.items():
        for key, value in values:
            size = base | {key: value}
            stream = token_stream(**size)
            our_ssdc(stream, size["grid"])
            taken = [seconds(lambda s=stream, g=size["grid"]: our_ssdc(s, g)) for _ in range(5)]
            rows.append({"of": name, "size": value[0] * value[1] if name == "tokens" else value,
                         "seconds": min(taken)})  # fmt: skip
    return pd.DataFrame(rows)


def growth_figure(rows: pd.DataFrame) -> Figure:
    """Seconds over size, both logarithmic, with the exponent of a straight line."""
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.8), sharey=True, layout="constrained")
    for axis, (name, own) in zip(axes, rows.groupby("of", sort=False), strict=True):
        power = np.polyfit(np.log(own["size"]), np.log(own["seconds"]), 1)[0]
        axis.loglog(own["size"], own["seconds"], "o-")
        axis.set(xlabel=name, title=f"exponent {power:.2f}")
        axis.minorticks_off()
        axis.set_xticks(own["size"], [str(size) for size in own["size"]])
    axes[0].set_ylabel("seconds")
    return figure


def machine() -> pd.DataFrame:
    name = platform.processor() or platform.machine()
    if DEVICE == "cuda":
        name = torch.cuda.get_device_name()
    elif Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.split(": ")[1] for x in lines if x.startswith("model name")), name)
    threads = "" if DEVICE == "cuda" else f", one thread of {os.cpu_count()} cores"
    return pd.DataFrame([{"machine": name + threads, "python": platform.python_version(),
                          "torch": torch.__version__, "timm": timm.__version__,
                          "code": code_version(), "date": datetime.date.today()}])  # fmt: skip


def store(name: str, table: pd.DataFrame) -> None:
    write_atomically(TO / name, table.to_csv(index=False, float_format="%.3g"))


def main() -> None:
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or ["growth", *(run.__name__ for run in ROWS)]
    if unknown := {*chosen} - {"growth", *(run.__name__ for run in ROWS)}:
        sys.exit(
            f"no row {sorted(unknown)}; there are growth, {', '.join(r.__name__ for r in ROWS)}"
        )
    store("machine.csv", machine())  # first: the book's page shows it
    path = TO / "speed.csv"
    rows = {row["what"] + row["against"]: row for row in pd.read_csv(path).to_dict("records")
            } if path.exists() else {}  # fmt: skip
    for run, (what, other, aim) in ROWS.items():
        if run.__name__ not in chosen:
            continue
        row = {"what": what, "against": other, **run()}
        if aim is not None:
            met = row["ratio"] >= aim if "ratio" in row else row["ours, s"] <= aim
            met = met and row.get("error", 0) <= 1e-5
            row |= {"aim": aim, "met": "yes" if met else "no"}
        rows[what + other] = row
        print({key: row.get(key) for key in COLUMNS}, flush=True)
        order = [what + other for what, other, _ in ROWS.values()]
        stored = pd.DataFrame([rows[key] for key in order if key in rows], columns=COLUMNS)
        store("speed.csv", stored)
    if "growth" in chosen:
        store("growth.csv", found := growth())
        if DEVICE == "cpu":
            growth_figure(found).savefig(ROOT / "book" / "_assets" / "growth.png", dpi=150)


if __name__ == "__main__":
    main()

"""What training a preset's grid will cost on this machine: `python -m pe_utils.cost --preset gpu`.

Nothing is trained, stored or read: the rate is that of a few steps on random images.
"""

import argparse
import resource
import time
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch.utils.flop_counter import FlopCounterMode

from pe_utils.config import GRIDS, RunConfig, grid
from pe_utils.data import HELD_OUT, ImageData, Split
from pe_utils.train import SNAPSHOTS, TrainingRun

SIZES = {  # data set to its number of training and of test images
    "cifar10_jpeg": (50000, 10000),
    "cifar100": (50000, 10000),
    "imagenet_100": (126689, 5000),
    "photos": (600, 240),
    "tiny_imagenet": (100000, 10000),
    "tiny_imagenet_20": (10000, 1000),
}
SECONDS = 3  # of timed steps, after one that is not timed; one step at least
NOBODY = 2**31  # a seed that no run has


def cost(config: RunConfig) -> dict[str, float]:
    """What one run costs.

    Returns:
        images: seen in training, augmented copies counted; flops: of all forward and backward
        passes (matrix products only); images_per_second: measured now, on one device or thread;
        hours: at that rate; weights_bytes, runs_bytes: stored for good, and beside it in `runs/`;
        data_bytes: of the decoded data set, once for all runs; memory_bytes: peak of this process,
        or of the GPU.
    """
    train, test = SIZES[config.dataset]
    images = config.epochs * round(train * (1 - HELD_OUT))
    run = _rehearsal(config)
    counter = FlopCounterMode(display=False)
    with counter:
        run.one_step()
    began, seconds = time.perf_counter(), 0.0
    while seconds < SECONDS:
        run.step += 1
        run.one_step()  # ends with the loss, so that a GPU has finished
        seconds = time.perf_counter() - began
    rate = run.step * config.batch_size / seconds
    parameters = sum(weight.numel() for weight in run.model.parameters())
    height, width = config.image_size
    cuda = run.device.type == "cuda"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "images": images,
        "flops": counter.get_total_flops() / config.batch_size * images,
        "images_per_second": rate,
        "hours": images / rate / 3600,
        "weights_bytes": 2 * parameters,
        "runs_bytes": 2 * parameters * SNAPSHOTS,
        "data_bytes": 3 * height * width * (train + test),
        "memory_bytes": torch.cuda.max_memory_allocated() if cuda else peak,
    }


def _rehearsal(config: RunConfig) -> TrainingRun:
    """The run on one batch of random images, with a seed that leaves every stored run alone."""
    size = (config.batch_size, 3, *config.image_size)
    batch = Split(torch.randint(0, 256, size, dtype=torch.uint8),
                  torch.randint(0, config.num_classes, size[:1]))  # fmt: skip
    data = ImageData("random", (), "", train=batch, held_out=batch, test=batch)
    devices = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")
    return TrainingRun(replace(config, seed=NOBODY), data, devices)


def main() -> None:
    parser = argparse.ArgumentParser(description="Say what a preset's grid will cost here.")
    parser.add_argument("--preset", required=True, choices=GRIDS)
    runs = [run for run in grid(parser.parse_args().preset) if run.epochs]
    torch.set_num_threads(1)  # as a run has it
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "one CPU thread"
    print(f"{'':22} {'images':>12} {'PFLOP':>9} {'images/s':>9} {'hours':>8}   (a run on {where})")
    costs = {}
    for run in runs:
        kind = f"{run.condition} {run.protocol}"
        if kind not in costs:
            one = costs[kind] = cost(run)
            print(f"{kind:22} {one['images']:12,} {one['flops'] / 1e15:9.3g} "
                  f"{one['images_per_second']:9.0f} {one['hours']:8.2f}", flush=True)  # fmt: skip
    total = {key: sum(costs[f"{run.condition} {run.protocol}"][key] for run in runs) for key in one}
    print(f"training {len(runs)} runs: {total['hours']:.1f} hours one after the other, "
          f"{total['flops'] / 1e15:.3g} PFLOP")  # fmt: skip
    print(f"disk: {one['data_bytes'] / 1e9:.2f} GB of decoded images, "
          f"{total['weights_bytes'] / 1e9:.2f} GB of weights, "
          f"{total['runs_bytes'] / 1e9:.2f} GB of snapshots")  # fmt: skip
    print(f"memory: {max(c['memory_bytes'] for c in costs.values()) / 1e9:.1f} GB a run at most")


if __name__ == "__main__":
    main()

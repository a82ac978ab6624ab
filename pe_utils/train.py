"""One resumable training run; `python -m pe_utils.train --preset laptop` runs what is missing.

Nothing depends on where a run was cut: every step draws from generators seeded by (seed, step),
so a resumed run ends with the same bits as an unbroken one. On a CPU a run uses one thread, so
that its weights do not depend on the number of cores; runs are what goes in parallel. Started by
`accelerate launch`, the processes share one run: each takes its part of every batch, and the first
one writes.
"""

import argparse
import hashlib
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import timm
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save
from timm.models.eva import Eva
from timm.optim import param_groups_weight_decay
from torch import nn
from tqdm import tqdm

from pe_utils import results
from pe_utils.config import CONDITIONS, EXTENSIONS, PRESETS, PROTOCOLS, RunConfig
from pe_utils.data import ImageData, load, runs
from pe_utils.evaluate import accuracy
from pe_utils.interventions import permute_tokens
from pe_utils.models import build_vit
from pe_utils.protocols import label_smoothing, training_batch
from pe_utils.results import code_version, weights_record
from pe_utils.storage import alone, write_atomically

SNAPSHOTS = 12
CHECKPOINT_SECONDS = 60
SUM = 32  # bytes of a checkpoint's checksum, in front of it


def trained_model(config: RunConfig, data: ImageData) -> Eva:
    """The run's model on its float16 weights; trains it first if they are missing.

    Raises:
        ValueError: the data do not fit the config, or are not those the run was trained on.
    """
    if not finished(config):
        train(config, data)
    if (digest := weights_record(config)["digest"]) != data.digest:
        raise ValueError(f"{config.run_id} was trained on data {digest}, not {data.digest}")
    return load_model(config)


def finished(config: RunConfig) -> bool:
    """Whether a run has its weights and no checkpoint is left, which goes last."""
    return config.weights_path.exists() and not (config.run_dir / "checkpoint.pt").exists()


def load_model(config: RunConfig) -> Eva:
    """A finished run's model on its float16 weights, in eval mode, computing in float32.

    Raises:
        FileNotFoundError: the run is not finished.
        ValueError: the weights file is damaged, or holds another run.
    """
    if (run_id := (record := weights_record(config))["run_id"]) != config.run_id:
        raise ValueError(f"{config.weights_path.name} holds run {run_id}, not {config.run_id}")
    results.check_weights(config, record)
    return _load(config, config.weights_path)


def load_snapshots(config: RunConfig) -> Iterator[tuple[int, Eva]]:
    """(step, model after that many steps) of a run, in order; as `load_model` loads them.

    Raises: FileNotFoundError: the run has none: they lie in `runs/`, which is not committed.
    """
    paths = sorted((config.run_dir / "snapshots").glob("step-*.safetensors"))
    if not paths:
        raise FileNotFoundError(
            f"no snapshots of {config.run_id} in {config.run_dir}: they are kept where a run was "
            "trained and are not committed; set PE_HOME to an empty folder and run this there, "
            "which trains again"
        )
    for path in paths:
        yield int(path.stem.removeprefix("step-")), _load(config, path)


def _load(config: RunConfig, weights: Path) -> Eva:
    model = build_vit(config)
    model.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    return model.eval()


def train(config: RunConfig, data: ImageData) -> None:
    """Train one run to its end (or resume it) and store its float16 weights.

    Leaves in `config.run_dir`: checkpoint.pt, log.csv (a line an epoch) and snapshots/. A second
    process asked for the same run waits for the first.

    Raises:
        ValueError: the data have other classes or another image size than the config, the run, or
            the preset's other results, stand on other data, or the processes cannot share a batch.
    """
    if len(data.classes) != config.num_classes:
        raise ValueError(
            f"{data.name} has {len(data.classes)} classes but num_classes is {config.num_classes}"
        )
    if tuple(data.train.images.shape[2:]) != config.image_size:
        raise ValueError(
            f"images are {tuple(data.train.images.shape[2:])}, not {config.image_size}"
        )
    results.check_data(config.preset, data.name, data.digest)
    devices = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")  # see _autocast
    if config.batch_size % devices.num_processes:
        raise ValueError(
            f"{devices.num_processes} processes cannot share a batch of {config.batch_size} equally"
        )
    lock = alone(config.run_dir / "lock") if devices.is_main_process else nullcontext()
    with lock, _one_thread():
        devices.wait_for_everyone()
        if not finished(config):
            TrainingRun(config, data, devices).finish()
        devices.wait_for_everyone()


class TrainingRun:
    """The state of one run in progress."""

    def __init__(self, config: RunConfig, data: ImageData, devices: Accelerator) -> None:
        self.config, self.data, self.devices = config, data, devices
        self.device = devices.device
        self.images = data.train.images.to(self.device)  # on a CPU they stay mapped from the disk
        self.model = build_vit(config).to(self.device)
        groups = param_groups_weight_decay(
            self.model, config.weight_decay, no_weight_decay_list=self.model.no_weight_decay()
        )
        kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.optimizer]
        self.optimizer = kind(groups, lr=config.lr, fused=self.device.type == "cuda")
        self.forward = devices.prepare(self.model)
        if self.device.type == "cuda" and config.condition != "rpt":  # whose hook is new each step
            self.forward = torch.compile(self.forward)
        self.steps_per_epoch = max(1, len(data.train) // config.batch_size)
        self.steps = config.epochs * self.steps_per_epoch
        self.snapshots = {*np.geomspace(1, max(1, self.steps), SNAPSHOTS).round().astype(int)}
        self.step, self.seconds, self.losses, self.log = 0, 0.0, [], []
        self._resume()

    @property
    def checkpoint(self) -> Path:
        return self.config.run_dir / "checkpoint.pt"

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            return
        content = self.checkpoint.read_bytes()
        if hashlib.sha256(content[SUM:]).digest() != content[:SUM]:
            raise ValueError(
                f"{self.checkpoint} is damaged; remove it to train the run from its beginning"
            )
        state = torch.load(io.BytesIO(content[SUM:]), weights_only=True, map_location=self.device)
        if state["digest"] != self.data.digest:
            raise ValueError(
                f"{self.checkpoint} was begun on data {state['digest']}, not {self.data.digest}; "
                "move it away to begin afresh"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.losses, self.log = state["losses"], state["log"]

    def _save(self) -> None:
        state = dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict(),
                     step=self.step, seconds=self.seconds, losses=self.losses, log=self.log,
                     digest=self.data.digest)  # fmt: skip
        torch.save(state, stream := io.BytesIO())
        content = stream.getvalue()  # torch does not notice a flipped bit
        write_atomically(self.checkpoint, hashlib.sha256(content).digest() + content)

    def finish(self) -> None:
        quiet = None if self.devices.is_main_process else True
        progress = tqdm(total=self.steps, initial=self.step, desc=self.config.run_id, disable=quiet)
        saved = time.monotonic()
        while self.step < self.steps:
            began = time.monotonic()
            self.losses.append(self.one_step())
            self.step += 1
            self.seconds += time.monotonic() - began
            progress.update()
            ended_epoch = self.step % self.steps_per_epoch == 0
            if ended_epoch:
                self._end_epoch(progress)
            if not self.devices.is_main_process:
                continue
            if self.step in self.snapshots:
                path = self.config.run_dir / "snapshots" / f"step-{self.step:07d}.safetensors"
                write_atomically(path, self._weights())
            if ended_epoch or time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.monotonic()
        progress.close()
        if self.devices.is_main_process:
            self._store()

    def _store(self) -> None:
        """Weights and log; the checkpoint goes last: until then a kill loses nothing."""
        write_atomically(self.config.weights_path, self._weights())
        if self.log:
            results.add("training", self.config, self.log, epochs=self.config.epochs)
        self.checkpoint.unlink(missing_ok=True)

    def one_step(self) -> float:
        config, (epoch, batch) = self.config, divmod(self.step, self.steps_per_epoch)
        order = torch.randperm(len(self.data.train), generator=_generator(config.seed, epoch, 1))
        picked = order[batch * config.batch_size : (batch + 1) * config.batch_size]
        draws = _generator(config.seed, self.step, 2)
        labels = self.data.train.labels[picked].to(self.device)
        images, labels = training_batch(config, self.images[picked], labels, draws)
        rank, ranks = self.devices.process_index, self.devices.num_processes
        images, labels = images[rank::ranks], labels[rank::ranks]
        torch.manual_seed(draws.initial_seed() + 1 + rank)  # dropout and stochastic depth
        shuffle = nullcontext()
        if config.condition == "rpt":
            order = torch.randperm(math.prod(config.grid), generator=draws)
            shuffle = permute_tokens(self.model, order)
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * self._schedule()
        self.model.train()
        with shuffle, _autocast(config, self.device):
            loss = nn.functional.cross_entropy(
                self.forward(images), labels, label_smoothing=label_smoothing(config)
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.devices.reduce(loss.detach(), "mean").item()

    def _schedule(self) -> float:
        """Linear warm-up, then half a cosine to zero; a factor on the learning rate."""
        warmup = min(self.config.warmup_epochs * self.steps_per_epoch, self.steps / 2)
        if self.step < warmup:
            return (self.step + 1) / (warmup + 1)
        return 0.5 * (1 + math.cos(math.pi * (self.step - warmup) / (self.steps - warmup)))

    def _end_epoch(self, progress: tqdm) -> None:
        held_out = self._held_out_accuracy()
        speed = self.step * self.config.batch_size / self.seconds
        row = dict(epoch=self.step // self.steps_per_epoch, step=self.step,
                   loss=float(np.mean(self.losses)), held_out_accuracy=held_out,
                   images_per_second=speed, minutes=self.seconds / 60)  # fmt: skip
        self.losses, self.log = [], [*self.log, row]
        if not self.devices.is_main_process:
            return
        lines = [",".join(row), *(",".join(f"{v:.6g}" for v in r.values()) for r in self.log)]
        path = self.config.run_dir / "log.csv"
        write_atomically(path, "\n".join(lines) + "\n")
        left = (self.steps - self.step) * self.config.batch_size / speed / 60
        progress.write(
            f"{self.config.run_id} epoch {row['epoch']}/{self.config.epochs}: loss "
            f"{row['loss']:.3f}, held-out accuracy {held_out:.3f}, {speed:.0f} images/s, "
            f"{left:.1f} min left",
            file=sys.stderr,
        )

    def _held_out_accuracy(self) -> float:
        """Every process counts its share of the images."""
        part = slice(self.devices.process_index, None, self.devices.num_processes)
        images, labels = self.data.held_out.images[part], self.data.held_out.labels[part]
        self.model.eval()
        right = round(accuracy(self.model, images, labels) * len(labels)) if len(labels) else 0
        right = self.devices.reduce(torch.tensor(right, device=self.device), "sum")
        return int(right) / len(self.data.held_out)

    def _weights(self) -> bytes:
        """The file: float16 tensors and what the run was."""
        weights = {
            k: v.detach().cpu().half().contiguous() for k, v in self.model.state_dict().items()
        }
        held_out = self.log[-1]["held_out_accuracy"] if self.log else ""
        metadata = dict(
            run_id=self.config.run_id, config=json.dumps(asdict(self.config)), step=str(self.step),
            data=self.data.name, digest=self.data.digest, classes="\n".join(self.data.classes),
            held_out_accuracy=str(held_out), minutes=f"{self.seconds / 60:.1f}",
            device=self.device.type, code=code_version(), torch=torch.__version__,
            timm=timm.__version__,
        )  # fmt: skip
        return save(weights, metadata=metadata)


def _generator(seed: int, position: int, stream: int) -> torch.Generator:
    """A generator of its own for each (training seed, epoch or step, purpose)."""
    state = np.random.SeedSequence([seed, position, stream]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 20 ^ int(state[1]))


def _autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_missing(
    configs: Sequence[RunConfig], data_root: str | None, jobs: int, options: Sequence[str]
) -> list[str]:
    """Train the runs that have no weights, `jobs` at a time; returns the ids that failed.

    options: of the command line that all runs share.
    """
    missing = [c for c in configs if not finished(c)]

    def one(config: RunConfig) -> str | None:
        root = [] if data_root is None else ["--data-root", data_root]
        run = [sys.executable, "-m", "pe_utils.train", "--preset", config.preset, "--jobs", "1",
               "--condition", config.condition, "--seed", str(config.seed),
               f"--protocol={config.protocol}", *options, *root]  # fmt: skip
        return config.run_id if subprocess.run(run).returncode else None

    with ThreadPoolExecutor(jobs) as pool:
        return [run_id for run_id in pool.map(one, missing) if run_id]


def _assignment(text: str) -> tuple[str, object]:
    """`name=value`, the value read as JSON or else as it stands."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes FIELD=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the runs of a preset that are missing.")
    parser.add_argument("--preset", required=True, choices=PRESETS)
    parser.add_argument("--condition", nargs="+", choices=CONDITIONS + EXTENSIONS,
                        help="all of the paper's if not given")  # fmt: skip
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--protocol", nargs="+", action="extend", choices=PROTOCOLS,
                        help="baseline if not given; with a minus: --protocol=-aa")  # fmt: skip
    parser.add_argument("--set", nargs="+", action="extend", metavar="FIELD=VALUE",
                        help="other than the preset's, such as init=timm lr=2e-3")  # fmt: skip
    parser.add_argument("--data-root", type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    options = parser.parse_args()
    options.set = options.set or []
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {options.jobs}")
    try:
        changes = dict(map(_assignment, options.set))
        if axes := {*changes} & {"preset", "condition", "seed", "protocol"}:
            raise ValueError(f"--set {min(axes)}: use the option --{min(axes)}")
        all_of = [
            c
            for c in CONDITIONS
            if c != "untrained_ablated" or not (options.protocol or "epochs" in changes)
        ]  # it has no training
        grid = (options.preset, options.condition or all_of, options.seed, options.data_root)
        configs = [
            c
            for p in dict.fromkeys(options.protocol or ["baseline"])
            for c in runs(*grid, protocol=p, **changes)
        ]
        first = configs[0]
        data = load(first.dataset, first.image_size, options.data_root)
        if options.jobs == 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
            for config in configs:
                train(config, data)
            return
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if failed := train_missing(configs, options.data_root, options.jobs,
                                 ["--set", *options.set] if options.set else []):  # fmt: skip
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

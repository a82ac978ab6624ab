"""What one training run is: a frozen, validated description, and the presets.

Two equal configs are the same training run. `RunConfig.run_id` is stable across sessions,
machines and new fields: it hashes only what differs from the defaults, so a default, once
released, never changes.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

CONDITIONS = ("ablated", "ape", "spe", "rope", "rpt", "untrained_ablated")
EXTENSIONS = ("conv",)  # encodings of our own, beside the paper's
PROTOCOLS = {  # of training, by what they add to crop, flip and cross-entropy
    "baseline": (),
    "+aa": ("aa",),
    "+cutmix": ("cutmix",),
    "+ls": ("ls",),
    "-aa": ("cutmix", "ls"),
    "-cutmix": ("aa", "ls"),
    "-ls": ("aa", "cutmix"),
    "modern": ("aa", "cutmix", "ls"),
    "+cutout": ("cutout",),
    "+mixup": ("mixup",),
}
DATASETS = (
    "cifar10_jpeg",
    "cifar100",
    "tiny_imagenet",
    "tiny_imagenet_20",
    "imagenet_100",
    "image_folder",
    "photos",
)
ROOT = Path(__file__).resolve().parents[1]
PILOT_SEED = 0  # may be looked at to make choices; every other seed is evidence


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run.

    Args:
        preset: label of the folder that results go to; not part of the run's identity.
        condition: one of `CONDITIONS` (arXiv:2606.00124, section 4.1) or `EXTENSIONS`.
        seed: training seed, 0 or more; pairs the conditions (same other weights and batches).
        dataset: one of `DATASETS`.
        num_classes: classes of the data set.
        image_size: (height, width) in pixels.
        patch_size: side of a square patch in pixels; divides height and width.
        init: `published` (PyTorch defaults, table and class token from N(0, 1)) or `timm`.
        dropout: probability, on the embedding, the attention and inside the MLP.
        protocol: one of `PROTOCOLS` (arXiv:2605.16390; `pe_utils.protocols`).
        augmentation: `crop` (padded by an eighth) or `resized_crop`; both with a flip.
        warmup_epochs: linear warm-up; a half cosine to zero follows.
        precision: `bfloat16` (autocast) or `float32`, for training; measuring is float32.
        digest: of an image folder's content, so that another folder is another run (`data.runs`).

    Raises:
        ValueError: a field is out of range or two fields contradict each other.
    """

    preset: str = field(compare=False)
    condition: str
    seed: int
    dataset: str
    num_classes: int
    image_size: tuple[int, int]
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    epochs: int
    mlp_ratio: float = 4.0
    init: str = "published"
    rope_temperature: float = 10000.0
    dropout: float = 0.0
    drop_path: float = 0.0
    batch_size: int = 128
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup_epochs: float = 1.0
    protocol: str = "baseline"
    augmentation: str = "crop"
    precision: str = "bfloat16"
    digest: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.image_size, tuple | list):
            raise ValueError(f"image_size must be (height, width), not {self.image_size!r}")
        object.__setattr__(self, "image_size", tuple(self.image_size))
        self._take_whole_numbers_as_floats()
        _one_of("condition", self.condition, CONDITIONS + EXTENSIONS)
        _one_of("protocol", self.protocol, tuple(PROTOCOLS))
        _one_of("dataset", self.dataset, DATASETS)
        _one_of("init", self.init, ("published", "timm"))
        _one_of("optimizer", self.optimizer, ("adamw", "adam"))
        _one_of("augmentation", self.augmentation, ("crop", "resized_crop"))
        _one_of("precision", self.precision, ("bfloat16", "float32"))
        if not isinstance(self.digest, str):
            raise ValueError(f"digest must be text, not {self.digest!r}")
        self._check_numbers()
        self._check_geometry()

    def _take_whole_numbers_as_floats(self) -> None:
        """So that 2 and 2.0 are one run. Refuses what is no number where one is due."""
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.type is float and type(value) is int:
                object.__setattr__(self, spec.name, float(value))
            elif spec.type is float and type(value) is not float:
                raise ValueError(f"{spec.name} must be a number, not {value!r}")

    def _check_numbers(self) -> None:
        for name in ("patch_size", "embed_dim", "depth", "num_heads", "batch_size", "num_classes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, not {self.seed!r}")
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), not {getattr(self, name)!r}")
        for name in ("lr", "rope_temperature", "mlp_ratio"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")
        for name in ("weight_decay", "warmup_epochs"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)!r}")
        untrained = self.condition == "untrained_ablated"
        if type(self.epochs) is not int or (self.epochs != 0 if untrained else self.epochs < 1):
            right = "0" if untrained else "a whole number of at least 1"
            raise ValueError(f"{self.condition}: epochs must be {right}, not {self.epochs!r}")
        if untrained and self.protocol != "baseline":
            raise ValueError(f"untrained_ablated has no training, so no protocol {self.protocol!r}")

    def _check_geometry(self) -> None:
        if len(self.image_size) != 2 or any(
            type(side) is not int or side < 1 or side % self.patch_size for side in self.image_size
        ):
            raise ValueError(
                f"image_size must be (height, width), both multiples of the patch size "
                f"{self.patch_size}, not {self.image_size}"
            )
        if self.embed_dim % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide embed_dim {self.embed_dim}")
        if self.condition == "rope" and (self.embed_dim // self.num_heads) % 4:
            raise ValueError(
                f"rope needs a head dimension divisible by 4 (two axes, pairs of channels), "
                f"not {self.embed_dim}/{self.num_heads} = {self.embed_dim // self.num_heads}"
            )
        if self.condition == "spe" and self.embed_dim % 4:
            raise ValueError(f"spe needs embed_dim divisible by 4, not {self.embed_dim}")

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def run_id(self) -> str:
        """`condition[_protocol]-seedN-xxxxxxxx`: names the run's folder, weights and table rows."""
        defaults = {f.name: f.default for f in fields(self)}
        chosen = {k: v for k, v in asdict(self).items() if k != "preset" and v != defaults[k]}
        digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
        protocol = "" if self.protocol == "baseline" else f"_{self.protocol}"
        return f"{self.condition}{protocol}-seed{self.seed}-{digest[:8]}"

    @property
    def run_dir(self) -> Path:
        """Checkpoint, snapshots and log; ignored by git."""
        return home() / "runs" / self.preset / self.run_id

    @property
    def weights_path(self) -> Path:
        """The finished run's float16 weights: the model every number is measured on."""
        return home() / "weights" / self.preset / f"{self.run_id}.safetensors"


PRESETS: dict[str, dict] = {
    # seconds on any machine, no data set: for tests and for trying a chapter out
    "smoke": dict(
        dataset="photos", num_classes=6, image_size=(32, 32), patch_size=8,
        embed_dim=32, depth=3, num_heads=2, epochs=2, batch_size=64,
    ),
    # minutes per run on one CPU thread
    "laptop": dict(
        dataset="cifar10_jpeg", num_classes=10, image_size=(32, 32), patch_size=4,
        embed_dim=96, depth=6, num_heads=3, epochs=15,
    ),
    # the laptop model on 20 classes of Tiny-ImageNet
    "laptop_tiny": dict(
        dataset="tiny_imagenet_20", num_classes=20, image_size=(64, 64), patch_size=8,
        embed_dim=96, depth=6, num_heads=3, epochs=25,
    ),
    # all of Tiny-ImageNet with a model twice as deep and wide: hours on one GPU for the whole grid
    "gpu": dict(
        dataset="tiny_imagenet", num_classes=200, image_size=(64, 64), patch_size=8,
        embed_dim=192, depth=12, num_heads=6, epochs=60,
    ),
    # the first paper's own table; AdamW, and an augmentation that it does not name
    "paper": dict(
        dataset="imagenet_100", num_classes=100, image_size=(224, 224), patch_size=16,
        embed_dim=384, depth=12, num_heads=8, epochs=60, dropout=0.15, drop_path=0.2,
        augmentation="resized_crop",
    ),
    # the second paper's architecture; its data set through torchvision
    "locality": dict(
        dataset="cifar100", num_classes=100, image_size=(32, 32), patch_size=4,
        embed_dim=192, depth=8, num_heads=8, mlp_ratio=2.0, epochs=200,
    ),
    # the same, half as wide, on the laptop's data
    "locality_laptop": dict(
        dataset="cifar10_jpeg", num_classes=10, image_size=(32, 32), patch_size=4,
        embed_dim=96, depth=8, num_heads=8, mlp_ratio=2.0, epochs=15,
    ),
    # the same with the paper's head dimension, on 20 classes of Tiny-ImageNet: many short epochs
    "locality_tiny": dict(
        dataset="tiny_imagenet_20", num_classes=20, image_size=(64, 64), patch_size=8,
        embed_dim=96, depth=8, num_heads=4, mlp_ratio=2.0, epochs=100,
    ),
    # the laptop model on a folder of one's own; `data.runs` counts its classes
    "own": dict(
        dataset="image_folder", num_classes=2, image_size=(64, 64), patch_size=8,
        embed_dim=96, depth=6, num_heads=3, epochs=15,
    ),
}  # fmt: skip

# the runs that a preset's evidence rests on; `own` has none, its classes are read from a folder
FACTORIAL = tuple(p for p, parts in PROTOCOLS.items() if {*parts} <= {"aa", "cutmix", "ls"})
GRIDS: dict[str, dict] = {
    "smoke": dict(conditions=CONDITIONS, seeds=(0,)),
    "laptop": dict(conditions=CONDITIONS, seeds=(1, 2, 3, 4)),
    "laptop_tiny": dict(conditions=CONDITIONS, seeds=(1, 2, 3)),
    "gpu": dict(conditions=CONDITIONS, seeds=(1, 2, 3, 4)),
    "paper": dict(conditions=CONDITIONS, seeds=(1, 2, 3, 4)),
    "locality": dict(conditions=("ape",), seeds=(1, 2), protocols=FACTORIAL),
    "locality_laptop": dict(conditions=("ape",), seeds=(1, 2), protocols=("baseline", "modern")),
    "locality_tiny": dict(conditions=("ape",), seeds=(1, 2), protocols=FACTORIAL),
}

# test images that SSDC and accuracy are measured on unless a chapter is told otherwise;
# all of an image folder that has fewer (`data.default_images`)
IMAGES = {
    "smoke": {"ssdc": 60, "accuracy": 240},
    "laptop": {"ssdc": 1000, "accuracy": 10000},
    "laptop_tiny": {"ssdc": 1000, "accuracy": 1000},
    "gpu": {"ssdc": 1000, "accuracy": 10000},
    "paper": {"ssdc": 1000, "accuracy": 5000},
    "locality": {"ssdc": 1000, "accuracy": 10000},
    "locality_laptop": {"ssdc": 1000, "accuracy": 10000},
    "locality_tiny": {"ssdc": 1000, "accuracy": 1000},
    "own": {"ssdc": 1000, "accuracy": 10000},
}


def preset_config(preset: str, condition: str, seed: int, **changes: object) -> RunConfig:
    """The config of one run of a preset; `changes` replace fields (`init="timm"`).

    Raises:
        ValueError: unknown preset, condition or field, or a value out of range.
    """
    _one_of("preset", preset, tuple(PRESETS))
    unknown = set(changes) - {f.name for f in fields(RunConfig)}
    if unknown:
        known = ", ".join(f.name for f in fields(RunConfig))
        raise ValueError(f"a run has no field {sorted(unknown)}; its fields are {known}")
    values = PRESETS[preset] | ({"epochs": 0} if condition == "untrained_ablated" else {})
    return replace(RunConfig(preset=preset, condition=condition, seed=seed, **values), **changes)


def grid(preset: str) -> list[RunConfig]:
    """The runs that a preset's evidence rests on (`GRIDS`), seeds outermost.

    Raises: ValueError: a preset without a grid.
    """
    _one_of("preset with a grid", preset, tuple(GRIDS))
    given = {"protocols": ("baseline",)} | GRIDS[preset]
    return [preset_config(preset, condition, seed, protocol=protocol) for seed in given["seeds"]
            for protocol in given["protocols"] for condition in given["conditions"]]  # fmt: skip


def home() -> Path:
    """Folder of `runs/`, `weights/` and `results/`: `PE_HOME`, else the repository.

    A relative path starts from the repository, never from the current folder.
    """
    return ROOT / os.environ.get("PE_HOME", "")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")

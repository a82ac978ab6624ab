"""Training protocols: what becomes of a batch before the model sees it."""

import torch
from torch import Tensor
from torchvision.transforms import v2

from pe_utils.config import PROTOCOLS, RunConfig
from pe_utils.data import augment, normalise, random_resized_crop

LABEL_SMOOTHING = 0.1
JITTER = dict(brightness=0.4, contrast=0.4, saturation=0.4)


def training_batch(
    config: RunConfig, images: Tensor, labels: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Augment, normalise and mix one batch as the run's protocol says.

    Every protocol crops and flips (`data.augment` or `data.random_resized_crop`, as the config
    says). `aa` adds AutoAugment's CIFAR-10 policy, drawn per image (on Tiny-ImageNet ColorJitter).
    CutMix and Mixup draw one share from Beta(1, 1) for the batch and mix it with itself moved on by
    one, which in a shuffled batch is a random pairing (a batch of one is mixed with itself and so
    left alone). Cutout blanks a square of half the image's side, its centre anywhere in the image.

    Args:
        images: (batch, 3, height, width) uint8; labels: (batch,) int64.
        generator: of this step, on the CPU; torchvision's draws come from a fork seeded by it.

    Returns:
        images, float32, normalised; labels, (batch,) int64 or, where two images are mixed,
        (batch, classes) float32 with rows that sum to 1.

    Source: arXiv:2605.16390; Cubuk et al. 2019 (AutoAugment), Yun et al. 2019 (CutMix), Zhang et
        al. 2018 (Mixup), DeVries and Taylor 2017 (Cutout).
    """
    parts = PROTOCOLS[config.protocol]
    crop = {"crop": augment, "resized_crop": random_resized_crop}[config.augmentation]
    images = crop(images, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed() + 2)
        if "aa" in parts:
            change = _recolour(config.dataset)
            images = torch.stack([change(image) for image in images])
        images = normalise(images)
        if "cutout" in parts:
            images = _cutout(images)
        for name, mix in (("cutmix", v2.CutMix), ("mixup", v2.MixUp)):
            if name in parts:
                images, labels = mix(num_classes=config.num_classes)(images, labels)
    return images, labels


def label_smoothing(config: RunConfig) -> float:
    """Share of the target spread over all classes; whole or mixed labels alike."""
    return LABEL_SMOOTHING if "ls" in PROTOCOLS[config.protocol] else 0.0


def _recolour(dataset: str) -> v2.Transform:
    if dataset.startswith("tiny_imagenet"):
        return v2.ColorJitter(**JITTER)
    return v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)


def _cutout(images: Tensor) -> Tensor:
    """Set a square to 0, the mean colour; it may reach over the border."""
    batch, _, height, width = images.shape
    half = min(height, width) // 4
    inside = []
    for side in (height, width):
        offset = torch.arange(side) - torch.randint(0, side, (batch, 1))
        inside.append((-half <= offset) & (offset < half))
    square = (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
    return images.masked_fill(square.to(images.device), 0.0)

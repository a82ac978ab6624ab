"""Content-disrupting shifts of uint8 images, at published severities and at matched ones."""

import io
import math
import re
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf


def corrupt(images: Tensor, name: str) -> Tensor:
    """A content-disrupting shift, applied to uint8 images before normalisation; deterministic.

    Args:
        images: (batch, 3, height, width) uint8.
        name: `clean`, `jpeg_q<quality>` (1 to 100), `blur_s<sigma>_k<kernel>` (sigma in pixels,
            odd kernel side) or `blur_s<sigma>` (a kernel wide enough for the sigma). The
            published settings are `jpeg_q5` and `blur_s2.5_k5`.

    Raises:
        ValueError: images are not uint8, or the name or one of its numbers is not as above.

    Source: arXiv:2606.00124, section 4.4.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"corrupt needs uint8 (n, 3, h, w), not {images.dtype} {images.shape}")
    if name == "clean" or not len(images):
        return images
    if (match := re.fullmatch(r"jpeg_q(\d+)", name)) and 1 <= (quality := int(match[1])) <= 100:
        return torch.stack([_jpeg(image, quality) for image in images.cpu()]).to(images.device)
    if match := re.fullmatch(r"blur_s(\d+(?:\.\d+)?)(?:_k(\d+))?", name):
        sigma = float(match[1])
        kernel = int(match[2]) if match[2] else 2 * math.ceil(4 * sigma) + 1
        if sigma > 0 and kernel % 2 and kernel // 2 < min(images.shape[2:]):
            return tvf.gaussian_blur(images, [kernel, kernel], [sigma, sigma])
    raise ValueError(
        f"unknown corruption {name!r} for {tuple(images.shape[2:])} images; "
        "use clean, jpeg_q5, blur_s2.5_k5 or blur_s2.5 with other numbers"
    )


def _jpeg(image: Tensor, quality: int) -> Tensor:
    """Through Pillow: the same bits as torchvision's encoder, which is deprecated since 0.29."""
    stored = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(stored, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(stored))).permute(2, 0, 1)


def changed_variance(images: Tensor, name: str) -> float:
    """Share of the pixel variance that a corruption changes: mean squared change / variance.

    Raises: ValueError: as `corrupt`, or all pixels are equal.
    """
    if not len(images) or images.min() == images.max():
        raise ValueError(f"the pixels of these {len(images)} images have no variance")
    before, after = images.float(), corrupt(images, name).float()
    return float((after - before).square().mean() / before.var())


def severity(name: str, images: Tensor) -> str:
    """The setting of a corruption that is named relative to the data set; others stay.

    Args:
        name: `blur_scaled`, the published sigma scaled from 224 px to the image (2.5 * side / 224);
            `jpeg_v<percent>` or `blur_v<percent>`, what changes that share of the pixel variance;
            or a name that `corrupt` takes.
        images: uint8 *training* images: evaluation images are never tuned on.

    Raises: ValueError: the percentage is not in 1 to 99.
    """
    if name == "blur_scaled":
        return f"blur_s{2.5 * min(images.shape[2:]) / 224:.3f}"
    match = re.fullmatch(r"(jpeg|blur)_v(\d+)", name)
    if not match:
        return name
    if not 1 <= (percent := int(match[2])) <= 99:
        raise ValueError(f"{name}: the share of the variance must be 1 to 99 percent")
    settings = {"jpeg": [f"jpeg_q{q}" for q in range(1, 96)],
                "blur": [f"blur_s{s / 20:.2f}" for s in range(5, 41)]}[match[1]]  # fmt: skip
    return _nearest(lambda setting: changed_variance(images, setting), settings, percent / 100)


def _nearest(value: Callable[[str], float], names: list[str], target: float) -> str:
    """Of names in monotone order, the one whose value is nearest to the target (bisection)."""
    rising = value(names[-1]) > value(names[0])
    low, high = 0, len(names) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (value(names[middle]) < target) == rising else (low, middle)
    return min(names[low], names[high], key=lambda name: abs(value(name) - target))

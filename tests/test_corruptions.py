import pytest
import torch
from torchvision.transforms.v2 import functional as tvf

from pe_utils.corruptions import changed_variance, corrupt, severity
from pe_utils.data import load


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision")
@pytest.mark.parametrize("quality", [5, 40])
def test_jpeg_is_the_one_of_torchvision(quality):
    images = load("photos", (32, 32)).test.first(4).images
    theirs = torch.stack([tvf.jpeg(image, quality) for image in images])
    assert torch.equal(corrupt(images, f"jpeg_q{quality}"), theirs)
    assert changed_variance(images, f"jpeg_q{quality}") > 0.01


def test_blur_keeps_a_constant():
    flat = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    assert torch.equal(corrupt(flat, "blur_s2.5_k5"), flat)


def test_the_published_blur_is_narrower_than_its_sigma():
    point = torch.zeros(1, 3, 65, 65, dtype=torch.uint8)
    point[..., 32, 32] = 255
    x = torch.arange(65) - 32.0
    spread = {}
    for name in ("blur_s2.5_k5", "blur_s2.5"):
        profile = corrupt(point, name)[0, 0].float().sum(dim=0)
        spread[name] = float((profile * x**2).sum() / profile.sum()) ** 0.5
    assert spread["blur_s2.5_k5"] == pytest.approx(1.34, abs=0.05)
    assert spread["blur_s2.5"] > 2  # rounding to uint8 cuts the tails off
    assert torch.equal(corrupt(point, "blur_s2.5"), corrupt(point, "blur_s2.5_k21"))


@pytest.mark.parametrize(
    "name", ["jpeg_q0", "jpeg_q101", "blur_s0_k5", "blur_s2.5_k4", "blur_s1_k99", "fog", "jpeg_q5 "]
)
def test_an_unknown_corruption_is_refused(name):
    with pytest.raises(ValueError, match=f"unknown corruption '{name}'"):
        corrupt(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), name)


def test_corruptions_want_uint8():
    with pytest.raises(ValueError, match="needs uint8"):
        corrupt(torch.zeros(1, 3, 32, 32), "jpeg_q5")


@pytest.mark.parametrize("name", ["jpeg_v3", "jpeg_v8", "blur_v3", "blur_v8"])
def test_matched_settings_change_the_same_share_of_the_variance(name):
    images = load("photos", (32, 32)).train.images[:200]
    setting = severity(name, images)
    assert setting.startswith(name[:4])
    assert changed_variance(images, setting) == pytest.approx(int(name[-1]) / 100, rel=0.15)


def test_relative_corruptions_know_the_image():
    small, large = (torch.zeros(1, 3, side, side, dtype=torch.uint8) for side in (32, 224))
    assert severity("blur_scaled", large) == "blur_s2.500"
    assert severity("blur_scaled", small) == "blur_s0.357"
    assert severity("jpeg_q5", small) == "jpeg_q5"
    assert changed_variance(load("photos", (32, 32)).test.images[:9], "clean") == 0
    with pytest.raises(ValueError, match="jpeg_v0: the share"):
        severity("jpeg_v0", small)

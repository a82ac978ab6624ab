"""Public functions on numbers and shapes nobody means: a finite value in range, or ValueError."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from pe_utils import metrics, stats
from pe_utils.config import PRESETS, RunConfig, preset_config
from pe_utils.corruptions import changed_variance, corrupt
from pe_utils.data import augment, normalise, random_resized_crop
from pe_utils.interventions import permute_tokens, scale_positions
from pe_utils.models import build_vit
from pe_utils.packed import decoded

ODD = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf, 0.5])
ANY = st.sampled_from([-1, 0, 3, True, None, "", "x", [], (), {}, (32,), ("a", "b"), b"x"])
SIDES = st.tuples(st.integers(0, 4), st.integers(0, 4))
tried = settings(max_examples=200, deadline=None)


def value_of(run):
    """What a call gives, or None where it refuses with a message."""
    try:
        return run()
    except ValueError as error:
        if len(str(error)) <= 10:
            raise
    return None


def outcome(run, low=-math.inf, high=math.inf):
    """Finite and in range, or refused."""
    if (value := value_of(run)) is not None:
        value = np.asarray(value, dtype=np.float64)
        assert np.isfinite(value).all()
        assert (value >= low - 1e-6).all()
        assert (value <= high + 1e-6).all()


@st.composite
def square(draw):
    n = draw(st.integers(0, 9))
    kind = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    width = {np.float64: 64, np.float32: 32, np.float16: 16}[kind]
    any_float = st.floats(width=width)
    values = draw(
        hnp.arrays(kind, (n, n), elements=draw(st.sampled_from([any_float, st.just(0.5)])))
    )
    how = draw(st.integers(0, 4))
    if how == 1:
        values = np.triu(values) + np.triu(values, 1).T  # symmetric, as a similarity is
    elif how == 2:
        values = np.repeat(values, 2, axis=1)[:, ::2]  # not contiguous
    elif how == 3 and n:
        with np.errstate(all="ignore"):
            values = np.abs(values) / np.abs(values).sum(axis=1, keepdims=True)  # as attention is
    return values


@tried
@given(square(), SIDES, st.sampled_from(["l1", "l2"]))
def test_ssdc(similarity, grid, norm):
    outcome(lambda: metrics.ssdc(similarity, grid, norm), -1, 1)


@tried
@given(square(), SIDES, st.booleans())
def test_attention(attention, grid, without_query):
    outcome(lambda: metrics.mean_attention_distance(attention, grid, without_query), 0, 1)
    outcome(lambda: metrics.attention_entropy(attention), 0, 1)
    outcome(lambda: metrics.self_attention_share(attention), 0, 1)


@tried
@given(st.lists(ODD | st.floats(), max_size=4), ODD | st.floats(), ODD | st.floats())
def test_curves_and_accuracies(curve, clean, shifted):
    outcome(lambda: metrics.delta_ssdc(curve))
    outcome(lambda: metrics.fragility(clean, shifted), high=1)


@tried
@given(SIDES, st.integers(-1, 5), st.integers(-1, 5))
def test_grids_and_orders(grid, n, patches):
    outcome(lambda: metrics.grid_distance(grid), 0)
    outcome(lambda: metrics.null_spread(grid, n), 0, 2)
    outcome(lambda: metrics.random_orders(patches, n, 0), 0, max(patches - 1, 0))


@tried
@given(st.lists(ODD | st.floats(-1e3, 1e3), max_size=5), ODD)
def test_intervals(values, level):
    found = value_of(lambda: stats.mean_interval(values, level))
    if found is None:
        return
    assert 0 < level < 1
    assert math.isfinite(found.mean)
    few = len(values) < 3
    assert math.isnan(found.low) == math.isnan(found.high) == few
    assert few or found.low <= found.mean <= found.high


@tried
@given(st.lists(ODD, max_size=4), st.lists(ODD, max_size=4), st.floats(-2, 2))
def test_levels(x, y, level):
    found = value_of(lambda: stats.at_level(x, y, level))
    if found is not None:
        assert math.isfinite(found) or not any(value >= level for value in x)


@tried
@given(st.lists(st.integers(-2, 17), max_size=18), st.sampled_from([torch.int64, torch.float32]))
def test_orders_of_tokens(order, dtype):
    model = build_vit(preset_config("smoke", "ape", 0))

    def run():
        with permute_tokens(model, torch.tensor(order, dtype=dtype)):
            return model(torch.zeros(1, 3, 32, 32))

    assert (value_of(run) is not None) == (
        sorted(order) == list(range(16)) and dtype == torch.int64
    )


@given(ODD)
def test_factors_of_positions(alpha):
    model = build_vit(preset_config("smoke", "ape", 0))
    before = model.pos_embed.clone()

    def scaled():
        with scale_positions(model, alpha):
            return model.pos_embed.clone()

    found = value_of(scaled)
    assert (found is not None) == (0 <= alpha <= 1)
    assert found is None or torch.equal(found, before * alpha)
    assert torch.equal(model.pos_embed, before)


@tried
@given(st.sampled_from(["clean", "jpeg_q5", "jpeg_q0", "blur_s2.5_k5", "blur_s0", "blur_s2.5", "",
                        "jpeg_q5; rm -rf /", "../x", "blur_snan", "blur_s1e9"]),
       st.integers(0, 2), st.sampled_from([1, 2, 3, 4]), st.integers(1, 9), st.integers(1, 9),
       st.sampled_from([torch.uint8, torch.float32, torch.float16]))  # fmt: skip
def test_corruptions(name, n, channels, height, width, dtype):
    images = torch.zeros(n, channels, height, width, dtype=dtype)
    out = value_of(lambda: corrupt(images, name))
    assert out is None or (out.shape == images.shape and out.dtype == torch.uint8)


@tried
@given(st.sampled_from([f for f in RunConfig.__dataclass_fields__ if f != "preset"]), ODD | ANY)
def test_fields_of_a_run(field, value):
    chosen = {"condition": "rope", "seed": 0} | {field: value}
    config = value_of(lambda: preset_config("smoke", **chosen))
    assert config is None or config.run_id == preset_config("smoke", **chosen).run_id


@pytest.mark.parametrize("crop", [augment, random_resized_crop])
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 3, 5, 9)])
def test_crops_of_small_images(crop, shape):
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    out = crop(images, torch.Generator().manual_seed(0))
    assert out.shape == images.shape
    assert normalise(out).isfinite().all()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1", "I;16", "F", "YCbCr"])
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (32, 32)])
def test_every_kind_of_picture_becomes_rgb(mode, size):
    grey = Image.fromarray(np.full(size[::-1], 128, np.uint8))
    picture = grey.convert("I").convert("I;16") if mode == "I;16" else grey.convert(mode)
    stored = io.BytesIO()
    picture.save(stored, {"CMYK": "JPEG", "YCbCr": "JPEG", "F": "TIFF"}.get(mode, "PNG"))
    pixels = decoded(stored.getvalue(), "x", (32, 32))
    assert pixels.shape == (32, 32, 3)
    assert pixels.dtype == np.uint8


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it can still read
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_damaged_picture_is_read_or_named(kind):
    stored, rng = io.BytesIO(), np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(stored, kind)
    for _ in range(200):
        content = bytearray(stored.getvalue())
        for place in rng.integers(0, len(content), rng.integers(1, 6)):
            content[place] = rng.integers(0, 256)
        content = bytes(content[: rng.integers(1, len(content) + 1)])
        try:
            assert decoded(content, "it", (8, 8)).shape == (8, 8, 3)
        except ValueError as error:
            assert str(error).startswith("it cannot be read as an image")  # noqa: PT017


def test_a_picture_that_would_fill_the_memory_is_refused():
    head = io.BytesIO()
    Image.new("1", (1, 1)).save(head, "PNG")
    huge = head.getvalue().replace(struct.pack(">II", 1, 1), struct.pack(">II", 30000, 30000))
    crc = zlib.crc32(huge[12:29])
    huge = huge[:29] + struct.pack(">I", crc) + huge[33:]
    with pytest.raises(ValueError, match=r"it cannot be read as an image: .*bomb"):
        decoded(huge, "it", (8, 8))


def test_orientation_in_a_camera_files_header_is_not_applied():
    """As in torchvision and timm, so that a data set is the same with every loader."""
    picture = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    plain, turned = io.BytesIO(), io.BytesIO()
    picture.save(plain, "PNG")
    picture.save(turned, "PNG", exif=exif)
    assert (decoded(turned.getvalue(), "x", (8, 8)) == decoded(plain.getvalue(), "x", (8, 8))).all()


def test_a_variance_that_is_zero_is_no_number_or_refused():
    flat = torch.full((2, 3, 16, 16), 7, dtype=torch.uint8)
    outcome(lambda: changed_variance(flat, "jpeg_q5"))


def test_presets_are_all_valid():
    for preset in PRESETS:
        assert preset_config(preset, "ape", 0).run_id

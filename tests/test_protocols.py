import pytest
import torch
from torch.nn.functional import cross_entropy

from pe_utils import protocols
from pe_utils.config import PROTOCOLS
from pe_utils.data import augment, load, normalise
from pe_utils.protocols import label_smoothing, training_batch

LABELS = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])


@pytest.fixture(scope="module")
def images():
    return load("photos", (32, 32)).test.first(8).images


def plain(shape=(8, 3, 32, 32)):
    """Image i has the value 10 i everywhere, so that a pixel tells which image it came from."""
    return (
        (10 * torch.arange(shape[0], dtype=torch.uint8))[:, None, None, None].expand(shape).clone()
    )


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def middle(images):
    """Without the border that the random crop pads with zeros."""
    return images[:, :, 4:-4, 4:-4]


def test_the_baseline_crops_flips_and_normalises(tiny, images):
    batch, labels = training_batch(tiny(), images, LABELS, generator())
    assert torch.equal(batch, normalise(augment(images, generator())))
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_batch_follows_its_generator_and_leaves_the_global_one_alone(tiny, images, protocol):
    config = tiny(protocol=protocol)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = training_batch(config, images, LABELS, generator())
    assert torch.equal(torch.rand(1), expected)
    again = training_batch(config, images, LABELS, generator())
    other = training_batch(config, images, LABELS, generator(2))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (8, 3, 32, 32)
    assert first[0].isfinite().all()


@pytest.mark.parametrize("protocol", ["+cutmix", "-aa"])
def test_cutmix_labels_are_the_shares_of_the_pixels(tiny, protocol):
    batch, labels = training_batch(tiny(protocol=protocol), plain(), LABELS, generator(3))
    own, partner = normalise(plain()), normalise(plain().roll(1, 0))
    for i in range(8):
        from_partner = (middle(batch)[i] == partner[i, :, :1, :1]).all(dim=0)
        from_self = (middle(batch)[i] == own[i, :, :1, :1]).all(dim=0)
        assert (from_partner ^ from_self).all()
        rows, columns = from_partner.any(dim=1).sum(), from_partner.any(dim=0).sum()
        assert from_partner.sum() == rows * columns > 0  # one rectangle
        wanted = torch.zeros(6)
        wanted[LABELS[i]] += 1 - labels[i, LABELS[i - 1]]
        wanted[LABELS[i - 1]] += labels[i, LABELS[i - 1]]
        assert torch.allclose(labels[i], wanted)
    assert len(labels[:, :].max(dim=1).values.unique()) == 1  # one share for the batch


@pytest.mark.parametrize("seed", range(20))
def test_a_cutmix_label_weighs_the_partner_by_its_share_of_the_image(tiny, monkeypatch, seed):
    """With the crop left out, so that every pixel tells whose it is; boxes at the border too."""
    monkeypatch.setattr(protocols, "augment", lambda images, _generator: images)
    batch, labels = training_batch(tiny(protocol="+cutmix"), plain(), LABELS, generator(seed))
    partner = normalise(plain().roll(1, 0))
    for i in range(1, 6):
        share = (batch[i] == partner[i, :, :1, :1]).all(dim=0).float().mean().item()
        assert labels[i, LABELS[i - 1]].item() == pytest.approx(share, abs=1e-6)
        assert labels[i, LABELS[i]].item() == pytest.approx(1 - share, abs=1e-6)


def test_mixup_mixes_pixels_and_labels_by_one_share(tiny):
    batch, labels = training_batch(tiny(protocol="+mixup"), plain(), LABELS, generator(3))
    share = labels[1, 1].item()
    assert 0 < share < 1
    wanted = share * normalise(plain()) + (1 - share) * normalise(plain().roll(1, 0))
    assert torch.allclose(middle(batch), middle(wanted), atol=1e-5)


def test_cutout_blanks_one_square_of_at_most_half_the_side(tiny):
    bright = torch.full((64, 3, 32, 32), 255, dtype=torch.uint8)
    batch, labels = training_batch(tiny(protocol="+cutout"), bright, LABELS.repeat(8), generator(3))
    assert torch.equal(labels, LABELS.repeat(8))
    blank = (batch == 0).all(dim=1)
    sizes = set()
    for one in blank:
        rows, columns = one.any(dim=1).sum().item(), one.any(dim=0).sum().item()
        assert one.sum() == rows * columns
        assert 8 <= rows <= 16
        assert 8 <= columns <= 16
        sizes.add((rows, columns))
    assert (16, 16) in sizes  # whole
    assert len(sizes) > 10  # and cut off by the border


def test_autoaugment_draws_for_each_image(tiny, monkeypatch):
    monkeypatch.setattr(protocols, "augment", lambda images, _generator: images)
    same = load("photos", (32, 32)).test.images[:1].repeat(16, 1, 1, 1)
    batch, labels = training_batch(tiny(protocol="+aa"), same, LABELS.repeat(2), generator())
    assert torch.equal(labels, LABELS.repeat(2))
    assert len({tuple(one.flatten().tolist()) for one in batch}) >= 4  # one draw gives one


def test_tiny_imagenet_has_its_colours_jittered_and_nothing_moved(tiny, images):
    config = tiny(protocol="+aa", dataset="tiny_imagenet_20")
    batch, _ = training_batch(config, images, LABELS, generator())
    cropped = normalise(augment(images, generator()))
    assert ((batch - cropped).abs().amax(dim=(1, 2, 3)) > 0.05).all()
    ranks = [
        x.mean(dim=1).flatten(1).argsort(dim=1).argsort(dim=1).float() for x in (batch, cropped)
    ]
    for new, old in zip(*ranks, strict=True):  # what was bright stays bright
        assert torch.corrcoef(torch.stack([new, old]))[0, 1] > 0.8


def test_label_smoothing_is_one_tenth_of_a_uniform_target(tiny):
    assert [label_smoothing(tiny(protocol=p)) for p in ("baseline", "+cutmix")] == [0, 0]
    share = label_smoothing(tiny(protocol="modern"))
    assert share == 0.1
    logits = torch.randn(3, 6, generator=generator())
    mixed = torch.eye(6)[[0, 1, 2]] * 0.7 + torch.eye(6)[[3, 3, 3]] * 0.3
    wanted = -((0.9 * mixed + 0.1 / 6) * logits.log_softmax(dim=1)).sum(dim=1).mean()
    assert cross_entropy(logits, mixed, label_smoothing=share).item() == pytest.approx(
        wanted.item()
    )


@pytest.mark.parametrize("protocol", ["+cutmix", "+mixup", "modern"])
def test_a_batch_of_one_is_mixed_with_itself(tiny, images, protocol):
    batch, labels = training_batch(tiny(protocol=protocol), images[:1], LABELS[:1], generator())
    assert labels.tolist() == [[1, 0, 0, 0, 0, 0]]
    if protocol != "modern":
        assert torch.allclose(batch, normalise(augment(images[:1], generator())), atol=1e-6)


def test_one_class_is_trained_as_one_class(tiny, images):
    config = tiny(protocol="modern", num_classes=1)
    _, labels = training_batch(config, images, torch.zeros(8, dtype=torch.int64), generator())
    assert labels.tolist() == [[1.0]] * 8


def test_an_unknown_protocol_is_refused(tiny):
    with pytest.raises(ValueError, match=r"unknown protocol 'cutmix'; choose one of baseline, .aa"):
        tiny(protocol="cutmix")

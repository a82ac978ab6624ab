import numpy as np
import pytest
import torch

from pe_utils.capture import attention_maps
from pe_utils.config import preset_config
from pe_utils.data import Split, load, normalise
from pe_utils.evaluate import (
    BATCH,
    accuracy,
    accuracy_under_rpi,
    anchoring_and_fragility,
    attention_by_head,
    attention_from,
    ssdc_by_depth,
    ssdc_per_image,
    ssdc_under_rpi,
    ssdc_variants,
)
from pe_utils.interventions import permute_tokens
from pe_utils.metrics import (
    attention_entropy,
    mean_attention_distance,
    null_spread,
    random_orders,
    self_attention_share,
    ssdc,
)
from pe_utils.models import build_vit
from pe_utils.train import load_model


@pytest.fixture(scope="module")
def images():
    return load("photos", (32, 32)).test.first(30).images


@torch.inference_mode()
def test_accuracy_counts_images_across_a_short_last_batch(tiny, images):
    model = build_vit(tiny()).eval()
    many = images.repeat(-(-(BATCH + 7) // len(images)), 1, 1, 1)[: BATCH + 7]
    right = model(normalise(many)).argmax(dim=1)
    labels = right.clone()
    labels[-7:] = (right[-7:] + 1) % 6
    assert accuracy(model, many, labels) == pytest.approx(BATCH / (BATCH + 7), abs=1e-12)


@pytest.fixture
def threads_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_restored")
def test_the_number_of_threads_moves_ssdc_by_less_than_a_ten_thousandth(images):
    """Sums may come in another order; here on trained weights, whose similarities are no ties."""
    model, found = load_model(preset_config("laptop", "ape", 1)), {}
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        heads = attention_by_head(model, images)[["mad", "entropy", "self_share"]]
        found[threads] = ssdc_by_depth(model, images)["ssdc"].to_numpy(), heads.to_numpy()
    for threads in (2, 4):
        assert np.abs(found[threads][0] - found[1][0]).max() < 1e-4
        assert np.abs(found[threads][1] - found[1][1]).max() < 1e-5


@torch.inference_mode()
def test_ssdc_by_depth_is_the_definition_step_by_step(tiny, images):
    model = build_vit(tiny(depth=3)).eval()
    torch.manual_seed(0)
    for block in model.blocks:  # or block_input would pass for attn_input
        torch.nn.init.normal_(block.norm1.weight, std=2)
    curves = ssdc_by_depth(model, images).pivot(index="depth", columns="site", values="ssdc")
    stream = model._pos_embed(model.patch_embed(normalise(images)))[0]
    for depth, block in enumerate(model.blocks):
        for site, tokens in (("block_input", stream), ("attn_input", block.norm1(stream))):
            unit = torch.nn.functional.normalize(tokens[:, 1:].double(), dim=-1)
            expected = ssdc((unit @ unit.mT).mean(dim=0).numpy(), (4, 4))
            assert curves[site][depth] == pytest.approx(expected, abs=1e-3)
        stream = block(stream)
    assert (curves["attn_input"] - curves["block_input"]).abs().min() > 0.01
    assert curves["block_output"][:-1].tolist() == curves["block_input"][1:].tolist()


def test_the_first_depths_alone_are_the_same(tiny, images):
    model = build_vit(tiny(depth=3)).eval()
    few, all_ = ssdc_by_depth(model, images, depths=2), ssdc_by_depth(model, images)
    assert few.equals(all_[all_["depth"] < 2].reset_index(drop=True))


def test_rpi_is_the_mean_over_orders_and_zero_without_positions(tiny, images):
    orders = random_orders(16, 5, 0)
    model = build_vit(tiny("spe")).eval()
    single = [ssdc_under_rpi(model, images, orders[i : i + 1]) for i in range(5)]
    mean = np.mean([curve["ssdc"] for curve in single], axis=0)
    assert ssdc_under_rpi(model, images, orders)["ssdc"].to_numpy() == pytest.approx(mean)
    with permute_tokens(model, orders[0]):
        by_hand = ssdc_by_depth(model, images)
    assert single[0].sort_values(["site", "depth"])["ssdc"].tolist() == by_hand["ssdc"].tolist()
    many = ssdc_under_rpi(build_vit(tiny("ablated")).eval(), images[:5], random_orders(16, 200, 0))
    assert many["ssdc"].abs().max() < 4 * null_spread((4, 4)) / 200**0.5
    with pytest.raises(ValueError, match="at least one order"):
        ssdc_under_rpi(model, images, orders[:0])


def test_misuse_is_named(tiny, images):
    model = build_vit(tiny())
    with pytest.raises(ValueError, match="training mode"):
        accuracy(model, images, torch.zeros(30, dtype=torch.long))
    with pytest.raises(ValueError, match="training mode"):
        ssdc_by_depth(model, images)
    with pytest.raises(ValueError, match="at least one image"):
        ssdc_by_depth(model.eval(), images[:0])
    with pytest.raises(ValueError, match="30 images with 29 labels"):
        accuracy(model, images, torch.zeros(29, dtype=torch.long))
    with pytest.raises(ValueError, match="depths must lie between 1 and 2, not 3"):
        ssdc_by_depth(model, images, depths=3)


@torch.inference_mode()
def test_accuracy_under_rpi_gives_each_order_its_share(tiny, images):
    model, orders = build_vit(tiny("ape")).eval(), random_orders(16, 4, 0)
    torch.manual_seed(0)
    for weight in model.parameters():  # or one class would be predicted for every image
        torch.nn.init.normal_(weight, std=0.5)
    truth = []
    for order, share in zip(orders, images.tensor_split(4), strict=True):
        with permute_tokens(model, order):
            truth.append(model(normalise(share)).argmax(dim=1))
    labels = torch.cat(truth)
    assert accuracy_under_rpi(model, images, labels, orders) == 1
    assert accuracy_under_rpi(model, images, labels, orders[::-1]) < 1
    labels[[3, 29]] = (labels[[3, 29]] + 1) % 6
    assert accuracy_under_rpi(model, images, labels, orders) == 28 / 30


def test_accuracy_without_positions_ignores_rpi(tiny, images):
    model, labels = build_vit(tiny("ablated")).eval(), torch.arange(30) % 6
    under = accuracy_under_rpi(model, images, labels, random_orders(16, 30, 0))
    assert under == accuracy(model, images, labels)
    with pytest.raises(ValueError, match="31 orders for 30 images"):
        accuracy_under_rpi(model, images, labels, random_orders(16, 31, 0))


def test_per_image_is_the_mean_of_single_images_and_not_that_of_the_mean_image(tiny, images):
    model, few = build_vit(tiny("spe")).eval(), images[:6]
    orders = random_orders(16, 6, 0)
    single = [ssdc_by_depth(model, image).set_index(["site", "depth"]) for image in few.split(1)]
    wanted = sum(single) / 6
    found = ssdc_per_image(model, few).set_index(["site", "depth"])
    assert found["ssdc"][wanted.index].to_numpy() == pytest.approx(wanted["ssdc"].to_numpy())
    averaged = ssdc_by_depth(model, few).set_index(["site", "depth"])["ssdc"]
    assert (averaged - wanted["ssdc"]).abs().max() > 0.01
    one = ssdc_per_image(model, few[:1], orders[:1]).set_index(["site", "depth"])["ssdc"]
    under = ssdc_under_rpi(model, few[:1], orders[:1]).set_index(["site", "depth"])["ssdc"]
    assert one.to_numpy() == pytest.approx(under.to_numpy())
    two = ssdc_per_image(model, few[:2], orders[:2]).set_index(["site", "depth"])["ssdc"]
    other = ssdc_per_image(model, few[1:2], orders[1:2]).set_index(["site", "depth"])["ssdc"]
    assert two.to_numpy() == pytest.approx(((one + other) / 2).to_numpy())
    with pytest.raises(ValueError, match="5 orders for 6 images; give each its own"):
        ssdc_per_image(model, few, orders[:5])


def test_variants_hold_the_published_choice_and_three_others(tiny, images):
    model = build_vit(tiny("spe")).eval()
    found = (
        ssdc_variants(model, images).set_index(["similarity", "norm", "depth"])["ssdc"].sort_index()
    )
    by_depth = ssdc_by_depth(model, images).query("site == 'attn_input'")["ssdc"]
    assert found["cosine", "l1"].tolist() == pytest.approx(by_depth.tolist())
    assert len(found) == 2 * 2 * 2
    assert (found["cosine", "l1"] - found["centred", "l1"]).abs().max() > 1e-3
    assert (found["cosine", "l1"] - found["cosine", "l2"]).abs().max() > 1e-4


def test_anchoring_and_fragility_are_those_of_the_single_measures(tiny, images):
    model, orders = build_vit(tiny("spe")).eval(), random_orders(16, 3, 0)
    test = Split(images, model(normalise(images)).argmax(dim=1))
    disrupted = images.flip(0)
    row = anchoring_and_fragility(model, images[:9], orders, test, disrupted)
    curve = ssdc_under_rpi(model, images[:9], orders).query("site == 'attn_input'")
    assert row["recovery"] == pytest.approx(curve.query("depth == 1")["ssdc"].item())
    shifted = accuracy(model, disrupted, test.labels)
    assert row["clean_accuracy"] == 1
    assert row["shifted_accuracy"] == shifted
    assert row["fragility"] == pytest.approx(1 - shifted)


def test_attention_by_head_is_the_mean_over_images_across_batches(tiny, images):
    model, many = build_vit(tiny(depth=2)).eval(), images.repeat(2, 1, 1, 1)[: BATCH + 7]
    rows = attention_by_head(model, many).set_index(["depth", "head"])
    assert rows.index.tolist() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    seen = {}
    with torch.inference_mode(), attention_maps(model, lambda d, maps: seen.update({d: maps})):
        model(normalise(many))
    for (depth, head), row in rows.iterrows():
        maps = seen[depth][:, head].numpy()
        assert row["mad"] == pytest.approx(mean_attention_distance(maps, (4, 4)).mean(), abs=1e-6)
        without = mean_attention_distance(maps, (4, 4), without_query=True).mean()
        assert row["mad_without_query"] == pytest.approx(without, abs=1e-6)
        assert row["entropy"] == pytest.approx(attention_entropy(maps).mean(), abs=1e-6)
        assert row["self_share"] == pytest.approx(self_attention_share(maps).mean(), abs=1e-6)
    assert rows["mad"].nunique() == 4
    with pytest.raises(ValueError, match="at least one image"):
        attention_by_head(model, many[:0])
    with pytest.raises(ValueError, match="training mode"):
        attention_by_head(model.train(), many)


def test_attention_from_one_patch_is_one_row_of_one_head(tiny, images):
    model = build_vit(tiny(depth=2)).eval()
    seen = {}
    with torch.inference_mode(), attention_maps(model, lambda d, maps: seen.update({d: maps})):
        model(normalise(images))
    found = attention_from(model, images, depth=1, head=0, query=6)
    assert found.shape == (30, 4, 4)
    assert (found.reshape(30, 16) == seen[1][:, 0, 6].numpy()).all()
    assert not (found == attention_from(model, images, depth=1, head=0, query=7)).all()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((2, 0, 0), "no block 2; choose 0 to 1"),
        ((0, -1, 0), "no head -1; choose 0 to 1"),
        ((0, 0, 16), "no patch 16; choose 0 to 15"),
    ],
)
def test_attention_from_nowhere_is_refused(where, message, tiny, images):
    with pytest.raises(ValueError, match=message):
        attention_from(build_vit(tiny(depth=2)).eval(), images, *where)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.float() / 255, r"must be .* of uint8, .* not .* of torch.float32"),
        (lambda i: i[0], r"must be .n, 3, height, width"),
        (lambda i: i[:, :1], r"must be .n, 3, height, width"),
        (lambda i: i[..., :16], r"the model takes \(32, 32\) pixels, not \(32, 16\)"),
    ],
)
def test_images_that_were_prepared_already_or_do_not_fit_are_refused(tiny, images, change, message):
    model = build_vit(tiny()).eval()
    with pytest.raises(ValueError, match=message):
        ssdc_by_depth(model, change(images))


def test_a_committed_model_measures_as_it_did():
    """Values that another torch or timm may move, and every number of the book with them."""
    config = preset_config("laptop", "ape", 1)
    found = ssdc_by_depth(load_model(config), load("photos", config.image_size).test.images)
    at_input = found.loc[found["site"] == "attn_input", "ssdc"].tolist()
    wanted = [0.3212, 0.7427, 0.7711, 0.7489, 0.7038, 0.6959]
    assert at_input == pytest.approx(wanted, abs=5e-4)

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_utils import results
from pe_utils.claims import (
    factorial_effects,
    locality_scoreboard,
    measured_locality,
    overall,
    points_the_other_way,
    scoreboard_html,
)
from pe_utils.claims import verdicts as verdicts_of
from pe_utils.config import FACTORIAL, PILOT_SEED, PROTOCOLS
from pe_utils.criteria_locality import LOCALITY_CLAIMS, Contrast, main_effect, per_run
from pe_utils.data import load
from pe_utils.train import train

ROOT = Path(__file__).resolve().parents[1]
BY_ID = {claim.id: claim for claim in LOCALITY_CLAIMS}


def runs(seeds=2, noise=0.002, rng_seed=0, **columns):
    """Runs as the paper describes them; `columns` replace a quantity by a function of the parts."""
    rng = np.random.default_rng(rng_seed)
    usual = {
        "min_mad": lambda p: 0.016 if "cutmix" in p else 0.3,
        "min_entropy": lambda p: 0.1 if "cutmix" in p else 0.8,
        "early_mad": lambda p: 0.2 if "cutmix" in p else 0.4,
        "mad_rise": lambda p: 0.2 if "cutmix" in p else 0.01,
        "entropy_rise": lambda p: 0.3 if "cutmix" in p else 0.02,
        "accuracy": lambda p: 0.6 + 0.065 * ("cutmix" in p) + 0.065 * ("aa" in p),
    } | columns
    return pd.DataFrame(
        [dict(run=f"{name}-{seed}", protocol=name, seed=seed)
         | {q: f(PROTOCOLS[name]) + rng.normal(0, noise) for q, f in usual.items()}
         for name in FACTORIAL for seed in range(1, seeds + 1)]
    )  # fmt: skip


def verdicts(table):
    return {c.id: overall([k.verdict(table) for k in c.checks])
            for c in LOCALITY_CLAIMS}  # fmt: skip


def test_runs_like_the_papers_reproduce_every_claim():
    assert verdicts(runs()) == dict.fromkeys(BY_ID, "reproduced")


def test_protocols_turned_around_contradict():
    turned = runs(
        min_mad=lambda p: 0.3 if "cutmix" in p else 0.016,
        mad_rise=lambda p: -0.2 if "cutmix" in p else 0.01,
        accuracy=lambda p: 0.6 - 0.065 * ("cutmix" in p),
    )
    found = verdicts(turned)
    assert [found[id_] for id_ in ("B1", "B2", "B4", "B5")] == ["contradicted"] * 4
    assert found["B3"] == "reproduced"  # whichever way CutMix goes, the others do less


def test_protocols_outside_the_eight_do_not_count():
    others = runs().query("protocol == 'baseline'").assign(protocol="+mixup")
    wild = others.assign(min_mad=[0.1, 0.9])
    (check, *_) = BY_ID["B1"].checks
    assert check.interval(pd.concat([runs(), wild])) == check.interval(runs())


def test_another_switch_than_cutmix_contradicts_b2_or_b3():
    by_ls = runs(min_mad=lambda p: 0.016 if "ls" in p else 0.3)
    assert verdicts(by_ls)["B3"] == "contradicted"
    assert verdicts(by_ls)["B2"] != "reproduced"
    none = runs(min_mad=lambda _p: 0.3)
    assert verdicts(none)["B3"] == "undecided"  # no effect of anything shows nothing
    both = runs(min_mad=lambda p: 0.3 - 0.14 * ("cutmix" in p) - 0.13 * ("aa" in p))
    assert verdicts(both)["B3"] == "contradicted"
    with_partner = runs(min_mad=lambda p: 0.016 if {"cutmix", "ls"} <= {*p} else 0.3)
    assert verdicts(with_partner)["B2"] in ("undecided", "contradicted")


def test_a_small_effect_is_direction_only():
    weak = runs(noise=0.0005, min_mad=lambda p: 0.26 if "cutmix" in p else 0.3)
    assert verdicts(weak)["B2"] == "direction only"


@pytest.mark.parametrize("rng_seed", range(10))
def test_protocols_that_differ_by_chance_reproduce_nothing(rng_seed):
    none = {q: lambda _p: 0.3 for q in ("min_mad", "min_entropy", "early_mad", "accuracy")}
    none |= {"mad_rise": lambda _p: 0.0, "entropy_rise": lambda _p: 0.0}
    assert "reproduced" not in verdicts(runs(noise=0.02, rng_seed=rng_seed, **none)).values()


def test_one_run_of_each_or_a_protocol_without_runs_decides_nothing():
    assert set(verdicts(runs(seeds=1)).values()) == {"undecided"}
    two = runs()[lambda t: t["protocol"].isin(["baseline", "modern"])]
    found = verdicts(two)
    assert found == {"B1": "reproduced", "B2": "undecided", "B3": "undecided", "B4": "undecided",
                     "B5": "reproduced"}  # fmt: skip


def test_the_main_effect_is_the_mean_without_minus_the_mean_with():
    assert main_effect("aa") == {"baseline": 0.25, "+aa": -0.25, "+cutmix": 0.25, "+ls": 0.25,
                                 "-aa": 0.25, "-cutmix": -0.25, "-ls": -0.25,
                                 "modern": -0.25}  # fmt: skip


def test_equal_gains_have_to_be_shown():
    (null,) = [k for k in BY_ID["B4"].checks if k.limit is not None]
    table = runs(accuracy=lambda p: 0.6 + 0.065 * ("cutmix" in p) + 0.12 * ("aa" in p))
    assert null.verdict(table) == "contradicted"
    assert null.verdict(runs(noise=0.05)) == "undecided"


def test_a_run_in_numbers_by_hand():
    attention = pd.DataFrame(
        [("a", "modern", 1, 0, 0, 0.1, 0.3, 0.8), ("a", "modern", 1, 0, 1, 0.3, 0.5, 0.1),
         ("a", "modern", 1, 1, 0, 0.4, 0.2, 0.0), ("a", "modern", 1, 1, 1, 0.5, 0.9, 0.0)],
        columns=["run", "protocol", "seed", "depth", "head", "mad", "entropy", "self_share"],
    )  # fmt: skip
    accuracy = pd.DataFrame({"run": ["a", "b"], "accuracy": [0.7, 0.1]})
    (row,) = per_run(attention, accuracy).to_dict("records")
    assert row == pytest.approx(
        dict(run="a", protocol="modern", seed=1, min_mad=0.1, self_share=0.8, min_entropy=0.2,
             early_mad=0.2, mad_rise=0.25, entropy_rise=0.15, accuracy=0.7)
    )  # fmt: skip
    assert per_run(attention, accuracy[1:]).empty


def test_what_the_criteria_ask_has_not_moved():
    """A change here changes verdicts after the evidence: it needs a reason in the book."""
    text = "\n".join(
        f"{c.id},{k.name},{k.formula},{k.criterion()},{sorted(k.weights.items())},{k.quantity},"
        f"{k.against and sorted(k.against.items())}"
        for c in LOCALITY_CLAIMS for k in c.checks
    )  # fmt: skip
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4b2409a159458000"


@pytest.mark.parametrize("preset", ["locality_laptop", "locality_tiny", "locality"])
def test_criteria_were_last_changed_before_the_first_evidence(preset, fixed_before):
    fixed_before("pe_utils/criteria_locality.py", f"results/{preset}/attention.csv")


def test_the_scoreboard_of_protocols_leaves_the_pilot_out_and_names_what_is_missing():
    table = runs()
    pilot = table[table["seed"] == 1].assign(seed=PILOT_SEED, min_mad=0.9)
    two = table[table["protocol"].isin(["baseline", "modern"])]
    rows = locality_scoreboard({"all": pd.concat([table, pilot]), "two": two, "none": table[:0]})
    assert verdicts_of(rows)["all"].to_dict() == dict.fromkeys(BY_ID, "reproduced")
    assert set(verdicts_of(rows)["none"]) == {"undecided"}
    b1 = rows[(rows["claim"] == "B1") & (rows["preset"] == "two")]
    assert b1["n"].tolist() == [4, 4, 4]
    assert b1["published"].isna().tolist() == [False, True, True]
    assert rows.loc[rows["preset"] == "none", "n"].eq(0).all()


def test_checks_without_a_published_number_count_and_decide_like_the_others():
    turned = runs(noise=1e-5, min_entropy=lambda p: 0.2 + 0.3 * ("cutmix" in p))
    rows = locality_scoreboard({"turned": turned})
    b1 = rows[rows["claim"] == "B1"].set_index("check")
    assert points_the_other_way(b1).tolist() == [False, True, False]
    html = scoreboard_html(rows)
    assert "minimum entropy: baseline - modern: -0.300" in html
    assert "1 of 3 effects the other way" in html
    assert "nan" not in html


def test_of_checks_without_a_number_the_smallest_effect_decides():
    small = runs(noise=0.0005, mad_rise=lambda p: 0.4 if len(p) == 3 else 0.3)
    html = scoreboard_html(locality_scoreboard({"small": small}))
    (b5,) = [row for row in html.split("<tr>") if ">B5</a>" in row]
    assert "rise of MAD: modern - baseline: 0.1" in b5


def test_stored_attention_becomes_one_row_per_run(home, tiny):
    configs = [tiny(seed=s, protocol=p) for p in ("baseline", "modern") for s in (0, 1)]
    photos, settings = load("photos", (32, 32)), dict(intervention="none", orders=0, order_seed=0)
    assert measured_locality(configs, 60, 240).empty
    for config in configs[:3]:
        train(config, photos)
        rows = [dict(depth=d, head=h, mad=0.1 + d + h + config.seed, mad_without_query=0.2,
                     entropy=0.5, self_share=0.3) for d in (0, 1) for h in (0, 1)]  # fmt: skip
        results.add("attention", config, rows, images=60, **settings)
        results.add("accuracy", config, [{"accuracy": 0.5}], images=240)
    found = measured_locality(configs, 60, 240)
    assert found["protocol"].tolist() == ["baseline", "modern", "baseline"]  # seeds outermost
    assert found["min_mad"].tolist() == pytest.approx([0.1, 0.1, 1.1])


def test_effects_and_interactions_are_those_worked_out_by_hand():
    def cell(parts):
        aa, cutmix = "aa" in parts, "cutmix" in parts
        return 0.5 + 0.08 * aa + 0.04 * cutmix + 0.02 * (aa and cutmix)

    mixed = pd.DataFrame({"protocol": ["+mixup"], "accuracy": [9.0]})
    found = factorial_effects(pd.concat([runs(noise=0, accuracy=cell), mixed]), ["accuracy"])
    means = found.loc["accuracy", "mean"]
    expected = {"aa": 0.09, "cutmix": 0.05, "ls": 0, "aa x cutmix": 0.01, "aa x ls": 0,
                "cutmix x ls": 0, "aa x cutmix x ls": 0}  # fmt: skip
    assert means.to_dict() == pytest.approx(expected)
    assert found["low"].tolist() == pytest.approx(means.tolist())
    noisy = runs(noise=0.1)
    effect = factorial_effects(noisy, ["min_mad"]).loc[("min_mad", "cutmix")]
    check = Contrast("", "", "min_mad", main_effect("cutmix")).interval(noisy)
    assert (effect["low"], effect["high"]) == pytest.approx((-check.high, -check.low))
    with pytest.raises(ValueError, match="'modern' has none"):
        factorial_effects(noisy[noisy["protocol"] != "modern"], ["min_mad"])

import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_utils import claims, results
from pe_utils.claims import (
    by_seed,
    criteria_commit,
    measure,
    measured_tables,
    overall,
    published_tables,
    scoreboard,
    scoreboard_html,
)
from pe_utils.claims import verdicts as verdicts_of
from pe_utils.config import preset_config
from pe_utils.criteria import CLAIMS, Tables
from pe_utils.data import load
from pe_utils.results import published
from pe_utils.train import train

ROOT = Path(__file__).resolve().parents[1]
PAPER = published_tables(published())
BY_ID = {claim.id: claim for claim in CLAIMS}


def over_seeds(
    scale: float = 1.0, noise: float = 0.003, seeds: int = 4, rng_seed: int = 0
) -> Tables:
    """The published tables as if measured: every deviation of a condition from the mean of all
    conditions times `scale`, every curve's deviation from its own start times `scale`, noise."""
    rng = np.random.default_rng(rng_seed)

    def spread(table: pd.DataFrame, column: str, group: list[str]) -> pd.DataFrame:
        middle = table.groupby(group)[column].transform("mean")
        frames = []
        for seed in range(1, seeds + 1):
            values = middle + scale * (table[column] - middle) + rng.normal(0, noise, len(table))
            frames.append(table.assign(seed=seed, **{column: values}))
        return pd.concat(frames, ignore_index=True)

    fragility = spread(PAPER.fragility, "fragility", ["corruption"])
    fragility["clean_accuracy"] = spread(PAPER.fragility, "clean_accuracy", ["corruption"])[
        "clean_accuracy"
    ]
    alpha = spread(PAPER.alpha, "fragility", ["condition"])
    alpha["delta_ssdc"] = spread(PAPER.alpha, "delta_ssdc", ["condition"])["delta_ssdc"]
    ssdc = PAPER.ssdc.assign(all=0)
    return Tables((14, 14), spread(ssdc, "ssdc", ["intervention"]), fragility, alpha)


def verdicts(tables: Tables) -> dict[str, str]:
    return {c.id: overall(measure(c, tables, PAPER)["verdict"].tolist()) for c in CLAIMS}


def test_the_papers_own_values_over_four_seeds_reproduce_every_claim():
    assert verdicts(over_seeds(noise=0.0005)) == {c.id: "reproduced" for c in CLAIMS}


def test_effects_turned_around_contradict_every_claim_of_an_effect():
    straight, turned = over_seeds(noise=0.0005), over_seeds(scale=-1, noise=0.0005)
    half = Tables((14, 14), straight.ssdc, turned.fragility, straight.alpha)
    assert verdicts(half)["A12"] == "contradicted"
    turned = verdicts(turned)  # A12: anchoring and fragility both turned correlate as before
    effects = [c.id for c in CLAIMS if c.id not in ("A1", "A3", "A6", "A12")]
    assert {id_: turned[id_] for id_ in effects} == {id_: "contradicted" for id_ in effects}


def test_effects_of_a_third_of_the_size_are_direction_only():
    weak = over_seeds(scale=1 / 3, noise=0.0002)
    for id_ in ("A4", "A7", "A13"):
        rows = measure(BY_ID[id_], weak, PAPER)
        assert set(rows["verdict"]) == {"direction only"}, id_


def test_fewer_than_three_seeds_decide_nothing():
    assert set(verdicts(over_seeds(seeds=2)).values()) == {"undecided"}


@pytest.mark.parametrize("rng_seed", range(10))
def test_conditions_that_do_not_differ_never_reproduce_an_effect(rng_seed):
    """Six conditions that differ by chance alone, at the noise of real seeds."""
    rows = pd.concat(
        [measure(c, over_seeds(scale=0, noise=0.02, rng_seed=rng_seed), PAPER) for c in CLAIMS]
    )
    verdict = rows.groupby("claim")["verdict"].agg(lambda v: overall(v.tolist()))
    nulls_and_levels = ("A1", "A3", "A6")
    assert "reproduced" not in set(verdict.drop(list(nulls_and_levels)))


def test_a_null_needs_its_whole_interval_inside_the_limit():
    claim = BY_ID["A3"]

    def with_level(level: float, noise: float) -> set[str]:
        tables = over_seeds(noise=0)
        rng = np.random.default_rng(0)
        here = (tables.ssdc["condition"] == "ablated") & (tables.ssdc["intervention"] == "rpi")
        tables.ssdc.loc[here, "ssdc"] = level + rng.normal(0, noise, here.sum())
        return set(measure(claim, tables, PAPER)["verdict"])

    assert with_level(0.0, 0.001) == {"reproduced"}
    assert with_level(0.2, 0.001) == {"contradicted"}
    assert with_level(-0.2, 0.001) == {"contradicted"}
    assert "reproduced" not in with_level(0.0, 0.2)


def test_a_contrast_pairs_by_seed_and_counts_only_whole_pairs():
    tables = over_seeds(noise=0)
    offset = tables.fragility["seed"] * 10.0  # what seeds have in common must cancel
    shifted = tables.fragility.assign(fragility=tables.fragility["fragility"] + offset)
    shifted = shifted[~((shifted["seed"] == 4) & (shifted["condition"] == "rope"))]
    rows = measure(BY_ID["A7"], Tables((14, 14), tables.ssdc, shifted, tables.alpha), PAPER)
    rows = rows.set_index("check")
    assert rows.loc["ablated - ape", ["mean", "n"]].tolist() == pytest.approx([0.2111, 4])
    assert rows.loc["ablated - rope", ["mean", "n"]].tolist() == pytest.approx([0.347, 3])


def test_published_values_by_hand():
    """Read off the paper's tables and figures."""
    values = pd.concat([measure(c, PAPER, PAPER) for c in CLAIMS]).set_index(["claim", "check"])
    assert values.loc[("A7", "rpt - spe"), "published"] == pytest.approx(0.6297 - 0.4351)
    assert values.loc[("A13", "rope - spe"), "published"] == pytest.approx(0.6901 - 0.6568)
    assert values.loc[("A9", "delta_ssdc: 1.0 - 0.4"), "published"] == pytest.approx(0.4725)
    assert values.loc[("A11", "frame over kind"), "published"] == pytest.approx(
        (0.6297 - 0.4351) - (0.4351 - 0.2988)
    )
    early_last = values.loc[("A5", "ape, rpi: early - last"), "published"]
    assert early_last == pytest.approx(0.4909 - 0.3968)  # depth 2 of 12, a sixth
    assert len(values.index.get_level_values("claim").unique()) == 13


def test_no_measurement_at_all_is_undecided():
    empty = Tables((8, 8), *(t.iloc[:0] for t in (PAPER.ssdc, PAPER.fragility, PAPER.alpha)))
    assert set(verdicts(empty).values()) == {"undecided"}


@pytest.mark.parametrize("absent", ["ssdc", "fragility", "alpha"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_no_claim_is_reproduced_without_all_it_rests_on(claim, absent):
    tables = over_seeds(noise=0.0005)
    rows = measure(claim, replace(tables, **{absent: getattr(tables, absent).iloc[:0]}), PAPER)
    complete = measure(claim, tables, PAPER)
    if (rows["n"] == 0).any():
        assert overall(rows["verdict"].tolist()) == "undecided"
    else:
        assert rows["mean"].tolist() == pytest.approx(complete["mean"].tolist())


def test_a_null_that_was_not_measured_is_undecided():
    tables = over_seeds(noise=0.0005)
    clean_only = tables.ssdc[tables.ssdc["intervention"] == "none"]
    rows = measure(BY_ID["A6"], replace(tables, ssdc=clean_only), PAPER)
    assert overall(rows["verdict"].tolist()) == "undecided"


def test_the_pilot_seed_is_no_evidence():
    tables = over_seeds(noise=0.0005)
    pilot = tables.fragility[tables.fragility["seed"] == 1].assign(seed=0, fragility=0.9)
    with_pilot = replace(tables, fragility=pd.concat([tables.fragility, pilot]))
    rows = measure(BY_ID["A7"], with_pilot, PAPER)
    assert rows.equals(measure(BY_ID["A7"], tables, PAPER))
    assert set(rows["n"]) == {4}


def stored(home, tiny, **changes):
    """Three tiny runs with known rows, at the settings that a scoreboard reads and at others."""
    configs = [tiny("ablated", seed, **changes) for seed in (0, 1, 2)]
    photos = load("photos", (32, 32))
    for config in configs:
        train(config, photos)
        for orders, intervention in ((0, "none"), (64, "rpi"), (5, "rpi")):
            rows = [dict(site=site, depth=depth, ssdc=config.seed + depth / 10 + orders / 1000)
                    for site in ("attn_input", "block_output") for depth in (0, 1)]  # fmt: skip
            results.add("ssdc", config, rows, images=60, intervention=intervention,
                        orders=orders, order_seed=0)  # fmt: skip
    return configs


def test_the_stored_rows_of_the_runs_and_settings_asked_for_are_read(home, tiny):
    configs = stored(home, tiny)
    stored(home, tiny, init="timm")
    other = preset_config("smoke", "rope", 1)  # not measured: simply absent
    tables = measured_tables([*configs, other], 60, 240)
    assert tables.curve("ablated", "rpi")[1].to_dict() == pytest.approx(
        {0: 0.164, 1: 1.164, 2: 2.164}
    )
    assert tables.curve("ablated", "none")[0].tolist() == [0, 1, 2]
    assert len(tables.ssdc) == 3 * 2 * 2
    assert tables.grid == (4, 4)
    assert tables.fragility.empty
    assert measured_tables(configs, 61, 240).ssdc.empty
    rows = scoreboard({"smoke": tables}, PAPER)
    assert set(verdicts_of(rows)["smoke"]) == {"undecided"}
    assert rows.loc[rows["claim"] == "A3", "n"].tolist() == [2, 2]  # the pilot does not count


def test_alpha_rows_join_what_was_measured_on_different_images(home, tiny):
    config = tiny("ape", 1)
    train(config, load("photos", (32, 32)))
    for alpha in (0.4, 1.0):
        row = {"first": 0.1, "second": alpha, "delta_ssdc": alpha - 0.1}
        results.add("alpha_ssdc", config, [row], alpha=alpha, images=60, orders=64, order_seed=0)
        row = {"clean_accuracy": 0.5, "fragility": 1 - alpha}
        results.add("alpha", config, [row], alpha=alpha, images=240, corruption="jpeg_q5")
    tables = measured_tables([config], 60, 240)
    assert tables.at_alpha("ape", "delta_ssdc").loc[1].to_dict() == pytest.approx(
        {0.4: 0.3, 1: 0.9}
    )
    rows = measure(BY_ID["A9"], tables, PAPER).set_index("check")
    assert rows.loc["delta_ssdc: 1.0 - 0.4", ["mean", "n"]].tolist() == pytest.approx([0.6, 1])
    assert rows.loc["fragility: 0.4 - 1.0", ["mean", "n"]].tolist() == pytest.approx([0.6, 1])


def test_the_scoreboard_shows_the_check_that_decides():
    straight, turned = over_seeds(noise=0.0005), over_seeds(scale=-1, noise=0.0005)
    rows = scoreboard({"one": straight, "<two>": turned}, PAPER)
    table = verdicts_of(rows)
    assert table["one"].to_dict() == {c.id: "reproduced" for c in CLAIMS}
    assert table.loc["A13", "<two>"] == "contradicted"
    html = scoreboard_html(rows, "chapters/")
    assert html.count("<tr>") == 14
    assert "<th>&lt;two&gt;</th>" in html
    assert '<a href="chapters/04_fragility.html">A13</a>' in html
    worst = rows[(rows["claim"] == "A13") & (rows["preset"] == "<two>")].iloc[0]
    assert (
        f"rope - spe: {worst['mean']:.3f} [{worst['low']:.3f}, {worst['high']:.3f}], n = 4" in html
    )
    assert "of 4 intervals 0 reproduced, 4 contradicted" in html
    assert "of 9 intervals 9 reproduced, 0 contradicted" in html


def test_every_claim_has_a_chapter_and_says_how_it_departs():
    chapters = {path.stem for path in (ROOT / "notebooks").glob("*.py")}
    assert set(claims.CHAPTERS) == set(claims.DEVIATIONS) == {*BY_ID, "B1", "B2", "B3", "B4", "B5"}
    assert {claims.CHAPTERS[claim] for claim in BY_ID} <= chapters
    assert all(claims.DEVIATIONS.values())


def test_estimands_seed_by_seed_are_those_that_the_intervals_average():
    tables = over_seeds(seeds=3)
    pilot = tables.ssdc[tables.ssdc["seed"] == 1].assign(seed=0)
    tables = replace(tables, ssdc=pd.concat([pilot, tables.ssdc]))
    asked = [BY_ID["A1"], BY_ID["A10"]]
    found = by_seed(asked, tables)
    assert found.columns.tolist() == ["seed 1", "seed 2", "seed 3"]
    judged = pd.concat([measure(claim, tables, PAPER) for claim in asked])
    means = judged.set_index(["claim", "check"])["mean"]
    assert found.mean(axis=1).to_dict() == pytest.approx(means.loc[found.index].to_dict())
    theirs = by_seed(asked, PAPER)["value"]
    assert theirs["A10", "fragility: 0.1 - 1.0"] == pytest.approx(
        judged.set_index("check").loc["fragility: 0.1 - 1.0", "published"]
    )


@pytest.mark.parametrize(
    ("low", "n", "text"),
    [
        (0.1, 4, "0.200 [0.100, 0.300], n = 4"),
        (np.nan, 2, "0.200, n = 2"),
        (np.nan, 0, "not measured"),
    ],
)
def test_an_interval_says_how_many_runs_it_has(low, n, text):
    row = pd.Series({"mean": 0.2, "low": low, "high": 0.3, "n": n})
    assert claims.interval_text(row) == text


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.parametrize("preset", ["laptop", "laptop_tiny"])
@pytest.mark.parametrize("table", ["ssdc", "fragility", "alpha_ssdc", "alpha"])
def test_criteria_were_last_changed_before_the_first_evidence(preset, table, fixed_before):
    """Evidence: a row of any seed but the pilot's, in any commit that lies in HEAD's past."""
    fixed_before("pe_utils/criteria.py", f"results/{preset}/{table}.csv")


def test_what_the_criteria_ask_has_not_moved():
    """Formulas, limits and published values, also where they rest on other modules than criteria.

    A change here changes verdicts after the evidence: it needs a reason in the book.
    """
    keys = ["claim", "check", "formula", "criterion", "published"]
    at_scale = replace(over_seeds(noise=0), grid=(8, 8))
    asked = pd.concat([measure(claim, at_scale, PAPER)[keys] for claim in CLAIMS])
    text = asked.to_csv(index=False, float_format="%.6f", lineterminator="\n")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "da14a067f8ca9dba"


def test_nulls_and_levels_can_fail_too():
    """What turning effects around leaves out: level and flatness of A1, the clean curve of A6."""
    tables = over_seeds(noise=0.0005)

    def changed(condition: str, values: np.ndarray) -> Tables:
        ssdc = tables.ssdc.copy()
        here = (ssdc["condition"] == condition) & (ssdc["intervention"] == "none")
        rng = np.random.default_rng(0)
        ssdc.loc[here, "ssdc"] = values[ssdc.loc[here, "depth"]] + rng.normal(0, 1e-3, here.sum())
        return replace(tables, ssdc=ssdc)

    def found(claim: str, tables: Tables) -> dict[str, str]:
        return measure(BY_ID[claim], tables, PAPER).set_index("check")["verdict"].to_dict()

    low = found("A1", changed("untrained_ablated", np.full(12, 0.2)))
    assert low == {"level": "direction only", "flatness": "reproduced"}
    steep = found("A1", changed("untrained_ablated", np.linspace(0.3, 0.9, 12)))
    assert steep == {"level": "reproduced", "flatness": "contradicted"}
    negative = found("A1", changed("untrained_ablated", np.full(12, -0.5)))
    assert negative["level"] == "contradicted"
    falling = found("A6", changed("rpt", np.linspace(0.6, 0.3, 12)))
    assert falling["rpt, none: last - first"] == "contradicted"


def test_how_often_nothing_at_all_is_called_a_contradiction():
    """The rates that the scoreboard page states, with conditions that differ by chance alone."""
    draws = [over_seeds(scale=0, noise=0.02, rng_seed=i) for i in range(40)]
    rate = {id_: np.mean(["contradicted" in set(measure(BY_ID[id_], t, PAPER)["verdict"])
                          for t in draws]) for id_ in ("A5", "A7", "A8", "A11")}  # fmt: skip
    assert all(0.15 < rate[id_] < 0.25 for id_ in ("A5", "A8")), rate  # about one in five
    assert 0.05 < rate["A7"] < 0.25, rate
    assert 0.5 < rate["A11"] < 0.75, rate  # more than half


@pytest.mark.parametrize("module", ["criteria", "criteria_locality"])
def test_the_page_names_the_commit_that_fixed_the_criteria(module):
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("without its whole history a repository does not tell")
    commit = criteria_commit(module)
    assert re.fullmatch(r"[0-9a-f]{12}", commit)
    assert f"pe_utils/{module}.py" in git("show", "--name-only", "--format=", commit)

import io
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_utils.claims import criteria_commit, measure, overall, published_tables
from pe_utils.config import PILOT_SEED
from pe_utils.criteria import CLAIMS, Tables
from pe_utils.results import published

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
def test_a_random_model_never_reproduces_an_effect(rng_seed):
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


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.parametrize("preset", ["laptop", "laptop_tiny"])
@pytest.mark.parametrize("table", ["ssdc", "fragility", "alpha_ssdc", "alpha"])
def test_criteria_were_last_changed_before_the_first_evidence(preset, table):
    """Evidence: a row of any seed but the pilot's, in any commit that lies in HEAD's past."""
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("without its whole history a repository does not tell")
    criteria = git("log", "-1", "--format=%H", "--", "pe_utils/criteria.py").strip()
    path = f"results/{preset}/{table}.csv"
    for commit in git("log", "--reverse", "--topo-order", "--format=%H", "--", path).split():
        stored = git("show", f"{commit}:{path}")
        if stored and (pd.read_csv(io.StringIO(stored))["seed"] != PILOT_SEED).any():
            assert git("rev-list", f"{commit}..{criteria}") == "", f"{criteria} is after {commit}"
            assert criteria != commit
            return


def test_the_page_names_the_commit_that_fixed_the_criteria():
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("without its whole history a repository does not tell")
    assert re.fullmatch(r"[0-9a-f]{12}", criteria_commit())
    assert "pe_utils/criteria.py" in git("show", "--name-only", "--format=", criteria_commit())

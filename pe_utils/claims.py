"""The verdicts: what the stored results say to each criterion (`criteria.CLAIMS`)."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from itertools import combinations

import numpy as np
import pandas as pd

from pe_utils import results
from pe_utils.config import FACTORIAL, PILOT_SEED, PROTOCOLS, ROOT, RunConfig
from pe_utils.criteria import BLUR, CLAIMS, JPEG, Claim, Tables
from pe_utils.criteria_locality import LEAST, LOCALITY_CLAIMS, per_run
from pe_utils.stats import Interval, contrast_interval, mean_interval

VERDICTS = ("contradicted", "undecided", "direction only", "reproduced")  # weakest first
NO_RUNS = Interval(np.nan, np.nan, np.nan, 0)
CHAPTERS = {
    **dict.fromkeys(("A1", "A2"), "01_ablated_emergence"),
    **dict.fromkeys(("A3", "A4", "A5"), "02_pe_trajectories"),
    "A6": "03_random_permutation_training",
    **dict.fromkeys(("A7", "A8", "A11", "A13"), "04_fragility"),
    **dict.fromkeys(("A9", "A10"), "05_alpha_scaling"),
    "A12": "11_anchoring_and_fragility",
    **dict.fromkeys(("B1", "B5"), "20_protocol_and_locality"),
    **dict.fromkeys(("B2", "B3", "B4"), "21_what_makes_it_local"),
}
# what a verdict has to be read with; noticed, in part, after the criteria were fixed
DEVIATIONS = {
    "A1": "nearly flat: a change within a quarter of the mean, our limit",
    "A2": "no single number in the paper: the contrasts are ours; one block of six is a longer "
    "step than one of twelve; on laptop and in the paper the step grows because training lowers "
    "its start, on laptop_tiny training raises it; the paper's own untrained curve passes the "
    "check from first to last",
    "A3": "zero by construction: tests the instrument; mean of many orders, limit two spreads of "
    "one, larger than what rope shows at its first depths on laptop, at any on laptop_tiny",
    "A4": "mean over depth minus that of ablated, not the maximum over depth; a sinusoidal table "
    "passes after one step of training",
    "A5": "early is after one block of six, theirs after two of twelve; a sinusoidal table that is "
    "spatial before any block leaves no room to rise",
    "A6": "its mean over runs is zero by symmetry: tests the instrument; the random table adds a "
    "scatter of its own, so that few runs may leave it undecided; the limit as in A3; the paper's "
    "own untrained curve passes the checks of a gradual clean rise",
    "A7": "JPEG 5 is another disruption on small images: at 32 px its blocks span two by two "
    "patches, at 64 px a block is a patch, in the paper a patch spans two by two blocks; "
    "ours were JPEG before, at the size the model sees",
    "A8": "blur of 2.5 px is another disruption on small images",
    "A9": "as alpha falls, clean accuracy may fall to chance, where fragility means nothing; "
    "flattening counts only if fragility rises first (0.4 - 1.0 above 0): the formula also gives a "
    "positive value where it falls faster below 0.4; one block of six against one of twelve",
    "A10": "as A9; no room for delta SSDC where the table alone is spatial; published: one seed",
    "A11": "our contrast; highest and lowest are taken per seed, which biases it downwards: with "
    "no difference between conditions it is contradicted in more than half of the simulations",
    "A12": "our correlation over five fixed conditions: its interval is over seeds of the same "
    "five and says nothing of a sixth; over five points an r of this size is compatible with none",
    "A13": "equal epochs, not convergence",
    "B1": "how the paper scales the distance is not told, the diagonal is ours; the minimum is one "
    "head of all; an effect of the pilot's size can at best be direction only; where no number is "
    "published the bar is ours and was raised after the first pilots",
    "B2": "published for another data set and one seed; preset and length were chosen on a pilot "
    "because CutMix showed there, which favours an effect; at the pilot's size at best direction "
    "only; one residual for all contrasts",
    "B3": "on Tiny-ImageNet aa is ColorJitter, the published ablation has AutoAugment; held "
    "against half of CutMix's effect in the same runs, so that a small one leaves it at best "
    "direction only",
    "B4": "as B3; gains published for another data set; that gains are equal within 0.02 needs a "
    "spread between runs that 1,000 test images hardly give: most likely undecided",
    "B5": "published as a figure only: contrasts and bar are ours, the bar was raised after the "
    "first pilots; a rise and fall between the first block and the last is missed; that baseline "
    "heads stay diffuse is not asked; the intervals of modern alone are too narrow where a seed "
    "moves all protocols alike",
}


def measure(claim: Claim, tables: Tables, published: Tables) -> pd.DataFrame:
    """One row per interval: claim, check, its formula and criterion, both values, verdict.

    A check on a curve over depth has a row per depth, beside the published value at the nearest
    relative depth. The pilot seed never counts. Seeds that lack a part of a contrast are
    left out of it; n says how many remain.
    """
    rows = []
    for check in claim.checks:
        reference, ours = check.estimand(published), check.estimand(tables)
        if isinstance(ours, pd.Series):
            reference, ours = reference.to_frame(), ours.to_frame()
        if ours.shape[1] == 0:  # nothing measured: the check must not vanish from the verdict
            ours = pd.DataFrame({0: pd.Series(dtype=float)})
        ours = ours.drop(index=PILOT_SEED, errors="ignore")
        for i, (depth, values) in enumerate(ours.items()):
            values = values.dropna()
            interval = mean_interval(values) if len(values) else NO_RUNS
            nearest = round(i / max(1, ours.shape[1] - 1) * (reference.shape[1] - 1))
            value = float(reference.iloc[0, nearest])
            label = check.name if ours.shape[1] == 1 else f"{check.name}, depth {depth}"
            verdict = check.verdict(interval, value, tables)
            rows.append(dict(claim=claim.id, check=label, formula=check.formula,
                             criterion=check.criterion(value, tables), published=value)
                        | asdict(interval) | dict(verdict=verdict))  # fmt: skip
    return pd.DataFrame(rows)


def by_seed(claims: Sequence[Claim], tables: Tables) -> pd.DataFrame:
    """The estimands of one number per seed, seed by seed: where seeds are too few for an interval.

    Returns: index claim, check; a column per evidence seed.
    """
    values = {}
    for claim in claims:
        for check in claim.checks:
            found = check.estimand(tables)
            if isinstance(found, pd.Series):
                values[claim.id, check.name] = found.drop(index=PILOT_SEED, errors="ignore")
    table = pd.DataFrame(values).T.rename_axis(["claim", "check"])
    return table.rename(columns=lambda seed: "value" if seed < 0 else f"seed {seed}")


def overall(verdicts: Sequence[str]) -> str:
    """The claim's verdict: that of its weakest check."""
    return min(verdicts, key=VERDICTS.index, default="undecided")


def published_tables(values: dict) -> Tables:
    """The published values of arXiv:2606.00124 as tables with one pseudo-seed, -1.

    Beside the values of fragility (std) and along alpha (delta_ssdc_std, fragility_std) stands
    their standard deviation over seeds, NaN where a single seed is published.

    Args: values: what `results.published()` returns.
    """
    paper = values["arxiv_2606_00124"]
    ssdc = [dict(condition=condition, seed=-1, intervention=intervention, depth=depth, ssdc=value)
            for intervention, curves in (("none", paper["ssdc_clean"]), ("rpi", paper["ssdc_rpi"]))
            for condition, curve in curves.items()
            for depth, value in enumerate(curve["mean"])]  # fmt: skip
    scores = {c: v for c, v in paper["accuracy_and_fragility"].items() if c != "columns"}
    fragility = [dict(condition=condition, seed=-1, corruption=corruption,
                      clean_accuracy=score[0], fragility=score[column], std=score[column + 1])
                 for condition, score in scores.items()
                 for corruption, column in ((JPEG, 2), (BLUR, 4))]  # fmt: skip
    names = {"delta_ssdc_rpi": "delta_ssdc", "jpeg_fragility": "fragility",
             "jpeg_fragility_std": "fragility_std"}  # fmt: skip
    alpha = [
        pd.DataFrame(paper[key := f"alpha_scaling_{condition}"]["rows"],
                     columns=paper[key]["columns"]).assign(condition=condition, seed=-1)
        for condition in ("ape", "spe")
    ]  # fmt: skip
    alpha = pd.concat(alpha).rename(columns=names)
    return Tables((14, 14), pd.DataFrame(ssdc), pd.DataFrame(fragility), alpha)


def measured_tables(
    configs: Sequence[RunConfig],
    ssdc_images: int,
    accuracy_images: int,
    orders: int = 64,
    order_seed: int = 0,
) -> Tables:
    """What is stored of these runs at these settings; runs that were not measured are absent."""
    rpi = {"images": ssdc_images, "orders": orders, "order_seed": order_seed}
    clean = {"images": ssdc_images, "orders": 0, "order_seed": 0}
    ssdc = pd.concat(
        [_stored("ssdc", configs, intervention="none", **clean),
         _stored("ssdc", configs, intervention="rpi", **rpi)]
    )  # fmt: skip
    fragility = pd.concat(
        _stored("fragility", configs, images=accuracy_images, corruption=name)
        for name in (JPEG, BLUR)
    )
    structure = _stored("alpha_ssdc", configs, **rpi)
    shifts = _stored("alpha", configs, images=accuracy_images, corruption=JPEG)
    alpha = shifts.merge(structure, on=[*results.RUN_COLUMNS, "alpha"], how="outer")
    return Tables(configs[0].grid, ssdc[ssdc["site"] == "attn_input"], fragility, alpha)


COLUMNS = {
    "ssdc": ["intervention", "site", "depth", "ssdc"],
    "fragility": ["corruption", "clean_accuracy", "fragility"],
    "alpha_ssdc": ["alpha", "delta_ssdc"],
    "alpha": ["alpha", "clean_accuracy", "fragility"],
    "attention": ["depth", "head", "mad", "mad_without_query", "entropy", "self_share"],
    "accuracy": ["accuracy"],
}


def _stored(table: str, configs: Sequence[RunConfig], **settings: object) -> pd.DataFrame:
    columns = [*results.RUN_COLUMNS, *COLUMNS[table]]
    absent = results.missing(table, configs, **settings)
    present = [config for config in configs if config not in absent]
    if not present:
        return pd.DataFrame(columns=columns)
    return results.read(table, present, **settings)[columns]


def scoreboard(presets: Mapping[str, Tables], published: Tables) -> pd.DataFrame:
    """All claims on all presets: `measure`'s rows with the column preset."""
    return pd.concat(
        [measure(claim, tables, published).assign(preset=preset)
         for preset, tables in presets.items() for claim in CLAIMS], ignore_index=True
    )  # fmt: skip


def measured_locality(
    configs: Sequence[RunConfig], attention_images: int, accuracy_images: int
) -> pd.DataFrame:
    """`criteria_locality.per_run` of what is stored of these runs; empty where nothing is."""
    clean = {"images": attention_images, "intervention": "none", "orders": 0, "order_seed": 0}
    attention = _stored("attention", configs, **clean)
    accuracy = _stored("accuracy", configs, images=accuracy_images)
    return per_run(attention, accuracy)


def factorial_effects(runs: pd.DataFrame, quantities: Sequence[str]) -> pd.DataFrame:
    """Main effects and interactions of the three components over the eight protocols.

    A main effect is the mean with the component minus the mean without it; an interaction is half
    of what an effect changes by when the other component is added. Intervals take the residual
    that is pooled over the eight (`stats.contrast_interval`).

    Args: runs: columns protocol and the quantities, a row per run; other protocols are left out.
    Returns: rows by (quantity, effect), the effect named `aa`, `aa x cutmix`, ...; columns mean,
        low, high, n.
    Raises: ValueError: as `stats.contrast_interval`; one of the eight has no run.
    """
    rows = {}
    for quantity in quantities:
        groups = {p: runs.loc[runs["protocol"] == p, quantity].tolist() for p in FACTORIAL}
        for n in (1, 2, 3):
            for parts in combinations(("aa", "cutmix", "ls"), n):
                without = {p: len({*parts} - {*PROTOCOLS[p]}) for p in FACTORIAL}
                weights = {p: (-1) ** absent / 4 for p, absent in without.items()}
                rows[quantity, " x ".join(parts)] = asdict(contrast_interval(groups, weights))
    return pd.DataFrame(rows).T.rename_axis(["quantity", "effect"])


def locality_scoreboard(presets: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The claims of arXiv:2605.16390 on every preset's runs: columns as `scoreboard`'s."""
    rows = []
    for preset, runs in presets.items():
        evidence = runs[runs["seed"] != PILOT_SEED]
        for claim in LOCALITY_CLAIMS:
            for check in claim.checks:
                interval = check.interval(evidence)
                published = np.nan if check.published is None else check.published
                rows.append(dict(claim=claim.id, check=check.name, formula=check.formula,
                                 criterion=check.criterion(), published=published)
                            | asdict(interval or NO_RUNS)
                            | dict(verdict=check.verdict(evidence), preset=preset))  # fmt: skip
    return pd.DataFrame(rows)


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """The verdict of every claim: claims x presets, in their order."""
    table = rows.groupby(["claim", "preset"])["verdict"].agg(lambda v: overall(v.tolist()))
    return table.unstack("preset").loc[rows["claim"].unique(), rows["preset"].unique()]


def scoreboard_html(rows: pd.DataFrame, chapters: str = "") -> str:
    """A row per claim, a column per preset with its weakest check, which decides.

    Args: rows: as `scoreboard` returns them; chapters: path to the chapters' pages, with a slash.
    """
    presets, texts = rows["preset"].unique(), {c.id: c.text for c in (*CLAIMS, *LOCALITY_CLAIMS)}
    head = "".join(f"<th>{escape(h)}</th>" for h in ("Claim", *presets, "Known deviations"))
    body = ""
    for claim in rows["claim"].unique():
        link = f'<a href="{chapters}{CHAPTERS[claim]}.html">{claim}</a>'
        cells = [f"{link} {escape(texts[claim])}"]
        for preset in presets:
            own = rows[(rows["claim"] == claim) & (rows["preset"] == preset)]
            cells.append(_verdict_cell(own))
        cells.append(escape(DEVIATIONS[claim]))
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return (
        f'<table class="dataframe scoreboard"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _verdict_cell(rows: pd.DataFrame) -> str:
    """The verdict, and the check that decides it: of the weakest the one least like the paper's."""
    verdict = overall(rows["verdict"].tolist())
    same = rows[rows["verdict"] == verdict]
    share = (same["mean"] / published_effect(same)).where(predicts_an_effect(same))
    weakest = same.loc[share.idxmin()] if share.notna().any() else same.iloc[0]
    found = f"{weakest['check']}: {interval_text(weakest)}"
    if not np.isnan(weakest["published"]):
        found += f" (published {weakest['published']:.3f})"
    text = f'<span class="verdict {verdict.replace(" ", "-")}">{verdict}</span><br>{escape(found)}'
    effects = rows[predicts_an_effect(rows) & (rows["n"] > 0)]
    if other := points_the_other_way(effects).sum():
        text += f"<br>{other} of {len(effects)} effects the other way"
    if rows["low"].isna().all():
        return text
    held, against = ((rows["verdict"] == v).sum() for v in ("reproduced", "contradicted"))
    return f"{text}<br>of {len(rows)} intervals {held} reproduced, {against} contradicted"


def predicts_an_effect(rows: pd.DataFrame) -> pd.Series:
    """Which checks ask for an effect of the published sign, and not for none at all."""
    return rows["criterion"].str.startswith("above")


def published_effect(rows: pd.DataFrame) -> pd.Series:
    """The published value; where there is none, that whose half is the bar of the second paper."""
    return rows["published"].fillna(2 * LEAST)


def points_the_other_way(rows: pd.DataFrame) -> pd.Series:
    """Whose mean has the other sign than the published effect; says nothing of its certainty."""
    return rows["mean"] * published_effect(rows) < 0


def interval_text(row: pd.Series) -> str:
    """`0.123 [0.101, 0.145], n = 4`; without an interval the mean, without a run `not measured`."""
    if row["n"] == 0:
        return "not measured"
    interval = "" if np.isnan(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['mean']:.3f}{interval}, n = {row['n']:.0f}"


def criteria_commit(module: str = "criteria") -> str:
    """The commit that last changed the criteria; a statement in words where git cannot tell.

    Args: module: `criteria` or, for the second paper, `criteria_locality`.
    """
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"],
                             capture_output=True, text=True).stdout.strip()  # fmt: skip
    if shallow != "false":
        return "not known without the repository's history"
    log = [*git, "log", "-1", "--format=%h", "--abbrev=12", "--", f"pe_utils/{module}.py"]
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()

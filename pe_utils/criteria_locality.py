"""The claims of arXiv:2605.16390 as criteria, fixed before the grid of protocols was trained.

Every check is a contrast: a weighted sum of the protocols' means of one number per run. Its 95 %
Student-t interval takes the residual that is pooled over all protocols, so that two runs of each
are enough. It is judged like the effects of the first paper (`pe_utils.criteria`): *reproduced*
when the whole interval lies above half the published value (above `LEAST` where no number is
published), *direction only* above 0, *contradicted* below 0, a null *reproduced* when the whole
interval lies inside +-limit and *contradicted* when it lies outside, anything else *undecided*.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pe_utils.config import FACTORIAL, PROTOCOLS
from pe_utils.stats import Interval, contrast_interval

SPLIT = 0.210 - 0.024  # published: minimum MAD at least without CutMix, at most with it
QUANTITIES = ["min_mad", "self_share", "min_entropy", "early_mad", "mad_rise", "entropy_rise"]
LEAST = 0.05  # of MAD or entropy, which reach from 0 to 1: half a step between patches
GAIN = 0.065  # published: CutMix and AutoAugment gain 6 to 7 points each


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of means over the runs of a protocol.

    Args:
        quantity: a column of `per_run`.
        weights: by protocol of the eight; those left out have none.
        published: the value to hold ours against; None where the paper gives no number.
        limit: None for an effect, else the half-width of a null.
        against: weights of a contrast whose absolute value is added, whichever sign it turns out
            to have.
    """

    name: str
    formula: str
    quantity: str
    weights: Mapping[str, float]
    published: float | None = None
    limit: float | None = None
    against: Mapping[str, float] | None = None

    def interval(self, runs: pd.DataFrame) -> Interval | None:
        """None where a protocol of the contrast has no run; the residual is that of the eight."""
        eight = runs[runs["protocol"].isin(FACTORIAL)]
        groups = {p: rows[self.quantity].tolist() for p, rows in eight.groupby("protocol")}
        if not {*self.weights} <= {*groups}:
            return None
        weights = dict(self.weights)
        if self.against is not None:
            sign = math.copysign(1, contrast_interval(groups, self.against).mean)
            weights = {p: w + sign * self.against[p] for p, w in weights.items()}
        return contrast_interval(groups, weights)

    def criterion(self) -> str:
        """What *reproduced* asks of the interval."""
        if self.limit is not None:
            return f"inside ±{self.limit:.3f}"
        if self.published is None:
            return f"above {LEAST:.3f} (no number published)"
        return f"above {self.published / 2:.3f}, half the published value"

    def verdict(self, runs: pd.DataFrame) -> str:
        interval = self.interval(runs)
        if interval is None or math.isnan(interval.low):  # too few runs
            return "undecided"
        low, high = interval.low, interval.high
        if self.limit is not None:
            if -self.limit < low and high < self.limit:
                return "reproduced"
            return "contradicted" if low > self.limit or high < -self.limit else "undecided"
        if low > 0:
            bar = LEAST if self.published is None else self.published / 2
            return "reproduced" if low > bar else "direction only"
        return "contradicted" if high < 0 else "undecided"


@dataclass(frozen=True)
class LocalityClaim:
    id: str
    text: str
    checks: Sequence[Contrast]


def per_run(attention: pd.DataFrame, accuracy: pd.DataFrame) -> pd.DataFrame:
    """The numbers that the contrasts are about, one row per run.

    Args:
        attention: columns run, protocol, seed, depth, head, mad, entropy, self_share.
        accuracy: columns run, accuracy.

    Returns:
        columns run, protocol, seed; min_mad (over heads and depths) and self_share of that head;
        min_entropy (likewise over all heads); early_mad (mean over the heads of the first quarter
        of the blocks); mad_rise and entropy_rise (mean over heads at the last depth minus at the
        first); accuracy. Runs without an accuracy are left out.
    """
    rows = []
    for (run, protocol, seed), own in attention.groupby(["run", "protocol", "seed"], sort=False):
        most_local = own.loc[own["mad"].idxmin()]
        mean = own.groupby("depth")[["mad", "entropy"]].mean()
        rise = mean.iloc[-1] - mean.iloc[0]
        early = mean["mad"].iloc[: max(1, len(mean) // 4)].mean()
        rows.append(dict(run=run, protocol=protocol, seed=seed, min_mad=most_local["mad"],
                         self_share=most_local["self_share"], min_entropy=own["entropy"].min(),
                         early_mad=early, mad_rise=rise["mad"],
                         entropy_rise=rise["entropy"]))  # fmt: skip
    columns = ["run", "protocol", "seed", *QUANTITIES]
    return pd.DataFrame(rows, columns=columns).merge(accuracy[["run", "accuracy"]], on="run")


def main_effect(component: str, sign: int = 1) -> dict[str, float]:
    """Weights of the mean without the component minus the mean with it, over all eight."""
    return {p: -sign / 4 if component in PROTOCOLS[p] else sign / 4 for p in FACTORIAL}


def _less(component: str) -> tuple[Contrast, Contrast]:
    """The component moves minimum MAD by less than half of what CutMix does, either way."""
    half = {p: w / 2 for p, w in main_effect("cutmix").items()}
    return tuple(
        Contrast(f"half of cutmix {word} {component}",
                 f"|E(cutmix)| / 2 {word} E({component}); E: mean minimum MAD without minus with, "
                 "over all eight protocols", "min_mad", main_effect(component, sign),
                 published=SPLIT / 2, against=half)
        for word, sign in (("-", -1), ("+", 1))
    )  # fmt: skip


def _minus(a: str, b: str, quantity: str, name: str, published: float | None = None) -> Contrast:
    return Contrast(f"{name}: {a} - {b}", f"{quantity}({a}) - {quantity}({b})", quantity,
                    {a: 1, b: -1}, published)  # fmt: skip


LOCALITY_CLAIMS = (
    LocalityClaim("B1", "The modern protocol gives more local and more concentrated attention.", (
        _minus("baseline", "modern", "min_mad", "minimum MAD", 0.316 - 0.008),
        _minus("baseline", "modern", "min_entropy", "minimum entropy"),
        _minus("baseline", "modern", "early_mad", "MAD of the first quarter"),
    )),
    LocalityClaim("B2", "CutMix alone decides it, whatever the other components.", tuple(
        _minus(a, b, "min_mad", "minimum MAD", SPLIT)
        for a, b in (("baseline", "+cutmix"), ("+aa", "-ls"), ("+ls", "-aa"),
                     ("-cutmix", "modern")))),
    LocalityClaim("B3", "AutoAugment and label smoothing have no effect of their own on locality.",
                  (*_less("aa"), *_less("ls"))),
    LocalityClaim("B4", "CutMix and AutoAugment gain alike; only CutMix changes the geometry.", (
        _minus("+cutmix", "baseline", "accuracy", "accuracy", GAIN),
        _minus("+aa", "baseline", "accuracy", "accuracy", GAIN),
        Contrast("equal gains", "accuracy(+cutmix) - accuracy(+aa); limit 0.02", "accuracy",
                 {"+cutmix": 1, "+aa": -1}, published=0.0, limit=0.02),
        _minus("+aa", "+cutmix", "min_mad", "minimum MAD", SPLIT),
    )),
    LocalityClaim("B5", "Modern heads start local and turn global with depth, baseline heads do "
                  "not.", (
        Contrast("modern, MAD rises", "MAD(last depth) - MAD(first), mean over heads, modern",
                 "mad_rise", {"modern": 1}),
        Contrast("modern, entropy rises", "entropy(last depth) - entropy(first), mean over heads, "
                 "modern", "entropy_rise", {"modern": 1}),
        _minus("modern", "baseline", "mad_rise", "rise of MAD"),
        _minus("modern", "baseline", "entropy_rise", "rise of entropy"),
    )),
)  # fmt: skip

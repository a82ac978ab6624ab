"""The claims of arXiv:2606.00124 as criteria, fixed before the evidence was measured.

A claim is a list of checks. A check's estimand is a formula on the tidy tables that gives one
number per training seed (or one per seed and depth); the same formula on the published tables
gives the published value. The 95 % Student-t interval over the evidence seeds then decides:

- an effect (`above`): *reproduced* when the whole interval lies above half the published value,
  *direction only* when it lies above zero, *contradicted* when it lies below zero;
- a null (`within`): *reproduced* when the whole interval lies inside +-limit, *contradicted*
  when it lies outside;
- anything else, and fewer than three seeds, is *undecided*.

A claim is contradicted if one of its checks is; else undecided, direction only or reproduced,
whichever of its checks is the weakest. No interval is corrected for their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from pe_utils.metrics import null_spread
from pe_utils.stats import Interval

JPEG, BLUR = "jpeg_q5", "blur_s2.5_k5"
PES = ("ape", "spe", "rope")
TRAINED = ("ablated", *PES, "rpt")


@dataclass(frozen=True)
class Tables:
    """Measured (or published) values by seed; SSDC is that of the site `attn_input`.

    Args:
        grid: (rows, columns) of patches the SSDC curves were measured on.
        ssdc: columns condition, seed, intervention (`none`, `rpi`), depth, ssdc.
        fragility: columns condition, seed, corruption, clean_accuracy, fragility.
        alpha: columns condition, seed, alpha, delta_ssdc, fragility (of `jpeg_q5`).
    """

    grid: tuple[int, int]
    ssdc: pd.DataFrame
    fragility: pd.DataFrame
    alpha: pd.DataFrame

    def curve(self, condition: str, intervention: str) -> pd.DataFrame:
        """SSDC, seeds x depths."""
        rows = self.ssdc.query("condition == @condition and intervention == @intervention")
        return rows.pivot(index="seed", columns="depth", values="ssdc")

    def fs(self, condition: str, corruption: str) -> pd.Series:
        """Fragility by seed."""
        rows = self.fragility.query("condition == @condition and corruption == @corruption")
        return rows.set_index("seed")["fragility"]

    def accuracy(self, condition: str) -> pd.Series:
        """Clean accuracy by seed."""
        rows = self.fragility.query("condition == @condition and corruption == @JPEG")
        return rows.set_index("seed")["clean_accuracy"]

    def at_alpha(self, condition: str, column: str) -> pd.DataFrame:
        """`delta_ssdc` or `fragility`, seeds x alpha."""
        rows = self.alpha.query("condition == @condition")
        return rows.pivot(index="seed", columns="alpha", values=column)


Estimand = Callable[[Tables], pd.Series | pd.DataFrame]


@dataclass(frozen=True)
class Check:
    """One contrast of a claim. limit: None for an effect, else the half-width of a null."""

    name: str
    formula: str
    estimand: Estimand
    limit: Callable[[Tables], float] | None = None

    def criterion(self, published: float, tables: Tables) -> str:
        """What *reproduced* asks of the interval."""
        if self.limit is None:
            return f"above {published / 2:.3f}, half the published value"
        return f"inside ±{self.limit(tables):.3f}"

    def verdict(self, interval: Interval, published: float, tables: Tables) -> str:
        if interval.n < 3:
            return "undecided"
        low, high = interval.low, interval.high
        if self.limit is None:
            if low > 0:
                return "reproduced" if low > published / 2 else "direction only"
            return "contradicted" if high < 0 else "undecided"
        limit = self.limit(tables)
        if -limit < low and high < limit:
            return "reproduced"
        return "contradicted" if low > limit or high < -limit else "undecided"


@dataclass(frozen=True)
class Claim:
    id: str
    text: str
    checks: Sequence[Check]


def _early(curve: pd.DataFrame) -> pd.Series:
    """SSDC at a sixth of the blocks: depth 2 of 12, depth 1 of 6."""
    return curve[max(1, round(curve.shape[1] / 6))]


def _change(t: Tables, condition: str, intervention: str, start: str, end: str) -> pd.Series:
    """SSDC(end) - SSDC(start) by seed; a point is `first`, `second`, `early` or `last`."""
    curve = t.curve(condition, intervention)
    if curve.empty:
        return pd.Series(dtype=float)
    points = {"first": curve[0], "second": curve[1], "early": _early(curve),
              "last": curve[curve.columns[-1]]}  # fmt: skip
    return points[end] - points[start]


def _level(t: Tables, condition: str, intervention: str) -> pd.Series:
    return t.curve(condition, intervention).mean(axis=1)


def _recovery(t: Tables, condition: str) -> pd.Series:
    """Mean SSDC under RPI over the depths that come after a block, 1 to last."""
    return t.curve(condition, "rpi").iloc[:, 1:].mean(axis=1)


def _sharpness(t: Tables) -> pd.Series:
    """The first block's step minus the mean step of the blocks after it."""
    steps = t.curve("ablated", "none").diff(axis=1)
    return steps.get(1, pd.Series(dtype=float)) - steps.iloc[:, 2:].mean(axis=1)


def _gap(t: Tables, corruption: str) -> pd.Series:
    """Mean fragility of ablated and rpt minus that of the three PEs."""
    without = (t.fs("ablated", corruption) + t.fs("rpt", corruption)) / 2
    return without - sum(t.fs(pe, corruption) for pe in PES) / len(PES)


def _alpha_change(t: Tables, condition: str, column: str, start: float, end: float) -> pd.Series:
    values = t.at_alpha(condition, column)
    if start not in values or end not in values:
        return pd.Series(dtype=float)
    return values[end] - values[start]


def _bend(t: Tables, column: str, sign: int) -> pd.Series:
    """How much steeper (per unit of alpha) the column is above alpha 0.4 than below it."""
    above = _alpha_change(t, "ape", column, 0.4, 1.0) / 0.6
    below = _alpha_change(t, "ape", column, 0.1, 0.4) / 0.3
    return sign * (above - below)


def _frame_over_kind(t: Tables) -> pd.Series:
    """(FS rpt - highest FS of a PE) - (highest - lowest FS of the PEs), under JPEG."""
    pes = pd.DataFrame({pe: t.fs(pe, JPEG) for pe in PES})
    highest = pes.max(axis=1, skipna=False)
    return (t.fs("rpt", JPEG) - highest) - (highest - pes.min(axis=1, skipna=False))


def _anchoring_correlation(t: Tables) -> pd.Series:
    """Minus Pearson's r, over the five trained conditions, of recovery and JPEG fragility."""
    recovery = pd.DataFrame({c: _recovery(t, c) for c in TRAINED}).dropna()
    fs = pd.DataFrame({c: t.fs(c, JPEG) for c in TRAINED}).dropna()
    return -recovery.corrwith(fs, axis=1).dropna()


def _less_fragile(corruption: str) -> list[Check]:
    pairs = [(a, b) for a in ("ablated", "rpt") for b in PES] + [("ape", "rope"), ("spe", "rope")]
    return [Check(f"{a} - {b}", f"FS({a}) - FS({b}), {corruption}",
                  lambda t, a=a, b=b: t.fs(a, corruption) - t.fs(b, corruption))
            for a, b in pairs]  # fmt: skip


def _shape(condition: str, intervention: str, start: str, end: str) -> Check:
    return Check(f"{condition}, {intervention}: {end} - {start}",
                 f"SSDC({end}) - SSDC({start}), {condition}, intervention {intervention}",
                 partial(_change, condition=condition, intervention=intervention,
                         start=start, end=end))  # fmt: skip


def _no_structure(condition: str) -> Check:
    """Null at every depth; the limit is what one random order of this grid shows by chance."""
    return Check(f"{condition} under RPI", "SSDC(d) under RPI, every depth d; limit: two "
                 "standard deviations of one random order", lambda t: t.curve(condition, "rpi"),
                 limit=lambda t: 2 * null_spread(t.grid))  # fmt: skip


def _alpha_check(condition: str, column: str, start: float, end: float) -> Check:
    return Check(f"{column}: {end} - {start}",
                 f"{column}(alpha={end}) - {column}(alpha={start}), {condition}",
                 partial(_alpha_change, condition=condition, column=column,
                         start=start, end=end))  # fmt: skip


CLAIMS = (
    Claim("A1", "At initialisation, ablated models already show high, nearly flat SSDC.", (
        Check("level", "mean over d of SSDC(d), untrained_ablated",
              lambda t: _level(t, "untrained_ablated", "none")),
        Check("flatness", "(SSDC(last) - SSDC(first)) / mean over d, untrained_ablated; limit 0.25",
              lambda t: _change(t, "untrained_ablated", "none", "first", "last")
              / _level(t, "untrained_ablated", "none"), limit=lambda t: 0.25),
    )),
    Claim("A2", "Training without PEs yields a sharp early rise.", (
        _shape("ablated", "none", "first", "second"),
        Check("more than untrained", "SSDC(1) - SSDC(0), ablated minus untrained_ablated",
              lambda t: _change(t, "ablated", "none", "first", "second")
              - _change(t, "untrained_ablated", "none", "first", "second")),
        Check("sharp", "first block's step minus mean step of the others, ablated", _sharpness),
        _shape("ablated", "none", "first", "last"),
    )),
    Claim("A3", "Under RPI the ablated model collapses to about 0 at every depth.",
          (_no_structure("ablated"),)),
    Claim("A4", "Under RPI every PE model recovers.", tuple(
        Check(f"{pe} - ablated", f"mean over d >= 1 of SSDC(d) under RPI, {pe} minus ablated",
              lambda t, pe=pe: _recovery(t, pe) - _recovery(t, "ablated")) for pe in PES)),
    Claim("A5", "Additive PEs inject early, then decay, clean and under RPI; RoPE accumulates.", (
        *(_shape(pe, intervention, start, end)
          for pe in ("ape", "spe") for intervention in ("none", "rpi")
          for start, end in (("first", "early"), ("last", "early"))),
        *(_shape("rope", intervention, "early", "last") for intervention in ("none", "rpi")),
    )),
    Claim("A6", "RPT does not recover under RPI; its clean curve rises gradually.", (
        _no_structure("rpt"),
        _shape("rpt", "none", "first", "last"),
        _shape("rpt", "none", "early", "last"),
    )),
    Claim("A7", "PE models are far less fragile to JPEG than ablated and RPT; RoPE least.",
          _less_fragile(JPEG)),
    Claim("A8", "Under blur the same order, smaller gaps.", (
        *_less_fragile(BLUR),
        Check("smaller gaps", "mean FS(ablated, rpt) - mean FS(ape, spe, rope), JPEG minus blur",
              lambda t: _gap(t, JPEG) - _gap(t, BLUR)),
    )),
    Claim("A9", "As alpha falls, delta SSDC collapses, fragility rises; both flatten below 0.4.", (
        _alpha_check("ape", "delta_ssdc", 0.4, 1.0),
        _alpha_check("ape", "fragility", 1.0, 0.4),
        Check("delta_ssdc flattens", "slope of delta_ssdc on alpha, [0.4, 1] minus [0.1, 0.4], ape",
              lambda t: _bend(t, "delta_ssdc", 1)),
        Check("fragility flattens", "minus slope of fragility on alpha, [0.4, 1] minus [0.1, 0.4], "
              "ape", lambda t: _bend(t, "fragility", -1)),
    )),
    Claim("A10", "For spe the same, but gradual: it goes on below alpha 0.4.", (
        _alpha_check("spe", "delta_ssdc", 0.1, 1.0),
        _alpha_check("spe", "fragility", 1.0, 0.1),
        _alpha_check("spe", "delta_ssdc", 0.1, 0.4),
        _alpha_check("spe", "fragility", 0.4, 0.1),
    )),
    Claim("A11", "A stable frame matters more than the kind of PE.", (
        Check("frame over kind", "(FS(rpt) - max FS(PEs)) - (max FS(PEs) - min FS(PEs)), JPEG",
              _frame_over_kind),
    )),
    Claim("A12", "Anchoring goes with robustness across conditions.", (
        Check("correlation", "minus Pearson's r over the five trained conditions of the mean over "
              "d >= 1 of SSDC(d) under RPI with FS, JPEG", _anchoring_correlation),
    )),
    Claim("A13", "Clean accuracy orders the same way: rope, spe, ape, ablated, rpt.", tuple(
        Check(f"{a} - {b}", f"accuracy({a}) - accuracy({b})",
              lambda t, a=a, b=b: t.accuracy(a) - t.accuracy(b))
        for a, b in (("rope", "spe"), ("spe", "ape"), ("ape", "ablated"), ("ablated", "rpt")))),
)  # fmt: skip

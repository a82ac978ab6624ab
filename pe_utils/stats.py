"""Means and intervals over training seeds. Images or alpha levels are not replicates."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, pearsonr
from scipy.stats import t as student_t


@dataclass(frozen=True)
class Interval:
    """A mean over `n` training seeds; `low` and `high` are NaN where n < 3 gives no interval."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """Mean with its two-sided Student-t interval over training seeds.

    One or two runs give no interval: `low` and `high` are NaN; show the points instead.

    Args:
        values: one number per training seed.
        level: coverage, in (0, 1).

    Raises:
        ValueError: no value, a value that is not finite, a level outside (0, 1), or a mapping
            (iterating it would average the seeds themselves).
    """
    if isinstance(values, Mapping):
        raise ValueError("values is a mapping by seed; pass its .values()")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), not {level!r}")
    runs = [float(value) for value in values]
    if not runs:
        raise ValueError("a mean needs at least one value, but values is empty")
    if not all(map(math.isfinite, runs)):
        raise ValueError(f"every value must be finite, not {runs}")
    mean = statistics.mean(runs)  # exact: equal values keep their value and have no spread
    if len(runs) < 3:
        return Interval(mean, math.nan, math.nan, len(runs))
    error = statistics.stdev(runs) / math.sqrt(len(runs))
    half = float(student_t.ppf((1 + level) / 2, df=len(runs) - 1)) * error
    return Interval(mean, mean - half, mean + half, len(runs))


def contrast_interval(
    groups: Mapping[str, Sequence[float]], weights: Mapping[str, float], level: float = 0.95
) -> Interval:
    """A weighted sum of group means, with the spread pooled over the runs of all groups.

    The residual of every group counts, also of those without a weight, so that few runs per group
    give an interval: its Student-t has as many degrees of freedom as there are runs less groups.
    It assumes that the spread between the runs of a group is the same in all groups.

    Args:
        groups: name to one number per run.
        weights: name to weight, for some of the groups.
        level: coverage, in (0, 1).

    Returns:
        `n` counts the runs of the weighted groups; NaN for `low` and `high` where all groups
        together leave fewer than 2 degrees of freedom.

    Raises:
        ValueError: a weighted group has no run, a value that is not finite, or a level outside
            (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), not {level!r}")
    if empty := [name for name in weights if not len(groups.get(name, ()))]:
        raise ValueError(f"a contrast needs a run of each of its groups; {empty[0]!r} has none")
    runs = {name: np.asarray(values, dtype=np.float64) for name, values in groups.items()}
    if not all(np.isfinite(values).all() for values in runs.values()):
        raise ValueError(f"every value must be finite, not {dict(groups)}")
    n = sum(len(runs[name]) for name in weights)
    freedom = sum(len(values) - 1 for values in runs.values() if len(values))
    mean = float(sum(weight * runs[name].mean() for name, weight in weights.items()))
    if freedom < 2:
        return Interval(mean, math.nan, math.nan, n)
    variance = sum(((values - values.mean()) ** 2).sum() for values in runs.values() if len(values))
    share = sum(weight**2 / len(runs[name]) for name, weight in weights.items())
    half = float(student_t.ppf((1 + level) / 2, df=freedom)) * math.sqrt(variance / freedom * share)
    return Interval(mean, mean - half, mean + half, n)


def correlation_interval(
    x: Sequence[float], y: Sequence[float], level: float = 0.95, groups: int = 1
) -> tuple[float, float, float]:
    """Pearson's r with its interval by Fisher's transformation: (r, low, high).

    Args: groups: of how many groups the means were subtracted; each but the first costs a pair.
    Raises: ValueError: fewer than 3 + groups pairs, other lengths, no spread, or a value that is
        not finite.
    """
    if len(x) != len(y) or len(x) < 3 + groups:
        raise ValueError(
            f"an interval of r needs {3 + groups} pairs or more, not {len(x)} and {len(y)}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or min(np.ptp(x), np.ptp(y)) == 0:
        raise ValueError(f"every value must be finite, and not all equal: {list(x)}, {list(y)}")
    r = float(pearsonr(x, y).statistic)
    z = math.atanh(r) if abs(r) < 1 else math.copysign(math.inf, r)
    half = float(norm.ppf((1 + level) / 2)) / math.sqrt(len(x) - groups - 2)
    return r, math.tanh(z - half), math.tanh(z + half)


def at_level(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """y where x first reaches the level, interpolated between neighbours; NaN if it never does.

    Args:
        x: a quantity along training, in the order of training; need not be monotone.
        y: another one at the same steps.

    Raises:
        ValueError: x and y are empty, of different length, or not finite.
    """
    if len(x) != len(y) or not len(x):
        raise ValueError(f"x and y need the same length, at least 1, not {len(x)} and {len(y)}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"every value must be finite, not {list(x)} and {list(y)}")
    reached = np.flatnonzero(np.asarray(x) >= level)
    if not len(reached):
        return math.nan
    i = int(reached[0])
    if i == 0:
        return float(y[0])
    share = (level - x[i - 1]) / (x[i] - x[i - 1])
    return float(y[i - 1] + share * (y[i] - y[i - 1]))


def half_way(steps: Sequence[float], gained: Sequence[float]) -> float:
    """The step at which what was gained first reaches half of its last value, up or down.

    Between two steps it is interpolated on a logarithmic axis.

    Args:
        steps: positive, in the order of training.
        gained: a quantity at these steps, less what it counts from (its first value, chance, 0).

    Raises:
        ValueError: as `at_level`, or a step is not positive.
    """
    if not all(step > 0 for step in steps):
        raise ValueError(f"every step must be positive, not {list(steps)}")
    logs, values = [math.log(step) for step in steps], np.asarray(gained, dtype=np.float64)
    sign = -1 if len(values) and values[-1] < 0 else 1
    return math.exp(at_level(sign * values, logs, abs(values[-1]) / 2 if len(values) else 0))

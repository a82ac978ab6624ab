"""Means and intervals over training seeds. Images or alpha levels are not replicates."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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

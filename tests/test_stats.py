import math

import numpy as np
import pytest
from scipy.stats import t as student_t
from scipy.stats import ttest_ind

from pe_utils.stats import (
    Interval,
    at_level,
    contrast_interval,
    correlation_interval,
    half_way,
    mean_interval,
)


def test_interval_by_hand():
    # mean 5, standard error sqrt(20 / 3) / 2, and t(0.975, 3) = 3.182446 from any printed table
    interval = mean_interval([2.0, 4.0, 6.0, 8.0])
    half = 3.182446 * math.sqrt(20 / 3) / 2
    assert (interval.mean, interval.n) == (5, 4)
    assert interval.low == pytest.approx(5 - half, abs=1e-5)
    assert interval.high == pytest.approx(5 + half, abs=1e-5)


def test_level_widens_the_interval():
    runs = [2.0, 4.0, 6.0, 8.0]
    narrow, wide = mean_interval(runs, level=0.9), mean_interval(runs, level=0.99)
    assert narrow.high - 5 == pytest.approx(2.353363 * math.sqrt(20 / 3) / 2, abs=1e-5)
    assert wide.high > narrow.high


def test_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(size=(2000, 4))
    hits = [interval.low <= 0 <= interval.high for interval in map(mean_interval, draws)]
    # 2000 draws: standard error 0.5 %; a normal quantile instead of t would cover 85 %
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("runs", [[0.25], [0.25, 0.75]])
def test_one_or_two_runs_have_no_interval(runs):
    interval = mean_interval(runs)
    assert (interval.mean, interval.n) == (sum(runs) / len(runs), len(runs))
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize("value", [0.1, 0.7, -1 / 3, 0.0])
@pytest.mark.parametrize("n", [3, 4, 7])
def test_equal_values_have_an_interval_of_width_zero(value, n):
    assert mean_interval([value] * n) == Interval(value, value, value, n)


def test_interval_takes_any_iterable():
    runs = [0.1, 0.2, 0.4]
    expected = mean_interval(runs)
    assert mean_interval(np.array(runs)) == expected
    assert mean_interval(dict(enumerate(runs)).values()) == expected
    assert type(mean_interval(np.array(runs, dtype=np.float32)).mean) is float


@pytest.mark.parametrize(
    ("values", "level", "message"),
    [
        ([], 0.95, "empty"),
        ([0.1, math.nan, 0.2], 0.95, "finite"),
        ([0.1, math.inf, 0.2], 0.95, "finite"),
        ([0.1, 0.2, 0.3], 95, "level must lie in"),
        ([0.1, 0.2, 0.3], 0, "level must lie in"),
        ({1: 0.1, 2: 0.2, 3: 0.4}, 0.95, r"pass its \.values\(\)"),
    ],
)
def test_interval_refuses(values, level, message):
    with pytest.raises(ValueError, match=message):
        mean_interval(values, level)


def test_a_level_is_met_at_its_first_crossing():
    x, y = [0.1, 0.3, 0.2, 0.7], [1.0, 2.0, 5.0, 0.0]
    assert at_level(x, y, 0.2) == pytest.approx(1.5)  # between the first two, not at the third
    assert at_level(x, y, 0.3) == 2
    assert at_level(x, y, 0.5) == pytest.approx(5 - 0.6 * 5)
    assert at_level(x, y, 0.05) == 1
    assert math.isnan(at_level(x, y, 0.71))
    with pytest.raises(ValueError, match="not 4 and 3"):
        at_level(x, y[:3], 0.2)


def test_a_contrast_of_two_groups_is_the_pooled_t_interval_of_scipy():
    a, b = [0.1, 0.4, 0.3], [0.9, 0.7]
    wanted = ttest_ind(a, b, equal_var=True).confidence_interval(0.95)
    found = contrast_interval({"a": a, "b": b}, {"a": 1, "b": -1})
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert found.n == 5


def test_a_contrast_takes_its_residual_from_all_groups():
    """By least squares on group indicators."""
    rng = np.random.default_rng(0)
    groups = {
        name: rng.normal(i, 1, n) for i, (name, n) in enumerate([("a", 2), ("b", 3), ("c", 2)])
    }
    weights = {"a": 0.5, "b": -1.0}
    design = np.repeat(np.eye(3), [2, 3, 2], axis=0)
    y = np.concatenate(list(groups.values()))
    means, residual, *_ = np.linalg.lstsq(design, y)
    c = np.array([0.5, -1.0, 0.0])
    error = np.sqrt(residual[0] / 4 * c @ np.linalg.inv(design.T @ design) @ c)
    found = contrast_interval(groups, weights, 0.9)
    assert found.mean == pytest.approx(c @ means)
    assert found.high - found.mean == pytest.approx(student_t.ppf(0.95, 4) * error)
    assert found.n == 5  # of the groups compared


def test_a_contrast_without_replicates_has_no_interval_and_bad_input_is_refused():
    found = contrast_interval({"a": [1.0], "b": [0.5, 0.7]}, {"a": 1, "b": -1})
    assert found.mean == pytest.approx(0.4)
    assert math.isnan(found.low)
    with pytest.raises(ValueError, match="each of its groups; 'c' has none"):
        contrast_interval({"a": [1.0], "c": []}, {"a": 1, "c": 1})
    with pytest.raises(ValueError, match="must be finite"):
        contrast_interval({"a": [1.0, math.nan]}, {"a": 1})
    with pytest.raises(ValueError, match="level must lie in"):
        contrast_interval({"a": [1.0]}, {"a": 1}, 95)


def test_the_interval_of_a_correlation_is_fishers():
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    r, low, high = correlation_interval(x, y)
    assert r == pytest.approx(0.8)
    half = 1.959964 / math.sqrt(2)  # two: pairs less three
    assert (low, high) == pytest.approx((math.tanh(math.atanh(0.8) - half),
                                         math.tanh(math.atanh(0.8) + half)), abs=1e-6)  # fmt: skip
    assert correlation_interval(x, x) == pytest.approx((1, 1, 1))
    assert correlation_interval([*x, 6.0], [*y, 6.0], groups=2)[1:] == pytest.approx(
        (math.tanh(math.atanh(31 / 35) - half), math.tanh(math.atanh(31 / 35) + half)), abs=1e-6
    )  # one of the six pairs less
    with pytest.raises(ValueError, match="needs 6 pairs or more, not 5 and 5"):
        correlation_interval(x, y, groups=3)
    for bad in ([1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 2.0, math.nan, 4.0, 5.0]):
        with pytest.raises(ValueError, match=r"an interval of r needs|every value must be finite"):
            correlation_interval(bad, y[: len(bad)])


def test_half_of_a_way_is_met_on_a_logarithmic_axis_up_or_down():
    steps = [1, 4, 16, 64]
    assert half_way(steps, [0.0, 0.2, 0.6, 0.8]) == pytest.approx(8)  # 0.4: half of 4 to 16
    assert half_way(steps, [0.0, -0.2, -0.6, -0.8]) == pytest.approx(8)
    assert half_way(steps, [0.5, 0.6, 0.7, 0.8]) == 1  # there from the start
    assert half_way(steps, [0.0, 0.0, 0.0, 0.0]) == 1
    with pytest.raises(ValueError, match="every step must be positive"):
        half_way([0, 1], [0.0, 1.0])
    with pytest.raises(ValueError, match="not 0 and 0"):
        half_way([], [])
    with pytest.raises(ValueError, match="must be finite"):
        half_way([1, 2], [0.0, math.nan])

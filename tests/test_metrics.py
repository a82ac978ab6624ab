import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from scipy.stats import spearmanr

from pe_utils.metrics import (
    attention_entropy,
    delta_ssdc,
    fragility,
    grid_distance,
    mean_attention_distance,
    null_spread,
    random_orders,
    self_attention_share,
    ssdc,
)


def random_similarity(patches, seed=0, levels=None):
    """Symmetric; with `levels`, integers that tie often, both zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(patches, patches))
    if levels:
        values = np.round(values * levels / 2)  # rounds to 0.0 and to -0.0
    return np.where(np.tri(patches, dtype=bool), values, values.T)


def scipy_ssdc(similarity, grid):
    pairs = np.triu_indices(len(similarity), k=1)
    return spearmanr(similarity[pairs], -grid_distance(grid)[pairs]).statistic


def exact_null_spread(grid):
    """Mantel's permutation variance in closed form, for the ranks of S = -D."""
    n = math.prod(grid)
    pairs = np.triu_indices(n, k=1)
    _, inverse, counts = np.unique(grid_distance(grid)[pairs], return_inverse=True, return_counts=1)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    ranks = (ranks - ranks.mean()) / np.std(ranks) / np.sqrt(len(ranks))
    u = np.zeros((n, n))
    u[pairs] = ranks
    u += u.T
    same, rows = (u**2).sum(), (u.sum(1) ** 2).sum()
    one, two, none = 2 * same, 4 * (rows - same), -2 * same - 4 * (rows - same)
    variance = one**2 / (2 * n * (n - 1)) + two**2 / (4 * n * (n - 1) * (n - 2))
    variance += none**2 / (n * (n - 1) * (n - 2) * (n - 3))
    return np.sqrt(variance) / 2  # every pair stood twice in the sum


def test_grid_distance_by_hand():
    expected = [
        [0, 1, 2, 1, 2, 3],
        [1, 0, 1, 2, 1, 2],
        [2, 1, 0, 3, 2, 1],
        [1, 2, 3, 0, 1, 2],
        [2, 1, 2, 1, 0, 1],
        [3, 2, 1, 2, 1, 0],
    ]
    distance = grid_distance((2, 3))
    assert distance.dtype == np.float64
    assert distance.tolist() == expected


@pytest.mark.parametrize("grid", [(0, 4), (4,), (2, 2, 2), (2.0, 2), (-1, 3)])
def test_grid_distance_refuses_what_is_no_grid(grid):
    with pytest.raises(ValueError, match="grid must be"):
        grid_distance(grid)


def symmetric(patches, pairs):
    similarity = np.eye(patches)
    for (i, j), value in pairs.items():
        similarity[i, j] = similarity[j, i] = value
    return similarity


def test_ssdc_by_hand_in_a_row_of_three():
    # S ranks of (01, 02, 12) 3, 2, 1 against closeness ranks 2.5, 1, 2.5: covariance 0
    assert ssdc(symmetric(3, {(0, 1): 0.9, (0, 2): 0.5, (1, 2): 0.1}), (1, 3)) == pytest.approx(0)
    # 2, 1, 3 against 2.5, 1, 2.5: 1.5 / sqrt(2 * 1.5)
    value = ssdc(symmetric(3, {(0, 1): 0.5, (0, 2): 0.1, (1, 2): 0.9}), (1, 3))
    assert value == pytest.approx(math.sqrt(3) / 2)


def test_ssdc_by_hand_in_a_square_of_four():
    # the diagonals 03 and 12 are far, so centred closeness ranks are 1 1 -2 -2 1 1, against
    # centred S ranks 2.5 1.5 0.5 -2.5 -1.5 -0.5: product 6, squares 12 and 17.5
    pairs = {(0, 1): 6, (0, 2): 5, (0, 3): 4, (1, 2): 1, (1, 3): 2, (2, 3): 3}
    assert ssdc(symmetric(4, pairs), (2, 2)) == pytest.approx(6 / math.sqrt(12 * 17.5))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("grid", [(3, 3), (2, 5), (1, 3)])
def test_ssdc_is_one_in_size_when_similarity_is_distance(grid, sign):
    assert ssdc(-sign * grid_distance(grid), grid) == pytest.approx(sign, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    grid=st.sampled_from([(1, 3), (2, 2), (3, 4), (7, 2), (8, 8)]),
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([None, 2, 4, 20]),
)
def test_ssdc_equals_scipy_with_and_without_ties(grid, seed, levels):
    similarity = random_similarity(math.prod(grid), seed, levels)
    pairs = similarity[np.triu_indices(len(similarity), k=1)]
    if np.ptp(pairs) == 0:
        with pytest.raises(ValueError, match="every pair"):
            ssdc(similarity, grid)
    else:
        assert ssdc(similarity, grid) == pytest.approx(scipy_ssdc(similarity, grid), abs=1e-12)


def test_ssdc_takes_average_ranks():
    similarity = random_similarity(16, levels=4)
    pairs = np.triu_indices(16, k=1)
    naive = [np.argsort(np.argsort(x[pairs])) for x in (similarity, -grid_distance((4, 4)))]
    assert abs(ssdc(similarity, (4, 4)) - np.corrcoef(naive)[0, 1]) > 1e-3


def test_ssdc_ties_both_zeros():
    similarity = random_similarity(9, levels=2)
    zeros = similarity == 0
    assert np.signbit(similarity[zeros]).any()
    assert not np.signbit(similarity[zeros]).all()
    assert ssdc(similarity, (3, 3)) == ssdc(np.where(zeros, 0.0, similarity), (3, 3))


def test_ssdc_sees_only_the_order_of_the_similarities():
    similarity = random_similarity(12)
    assert ssdc(np.exp(similarity), (3, 4)) == ssdc(similarity, (3, 4))
    assert ssdc(-similarity, (3, 4)) == pytest.approx(-ssdc(similarity, (3, 4)), abs=1e-12)


def test_ssdc_does_not_look_at_the_diagonal():
    similarity = random_similarity(12)
    assert ssdc(similarity + 7 * np.eye(12), (3, 4)) == ssdc(similarity, (3, 4))


def test_ssdc_is_the_same_in_a_mirror_and_lying_on_its_side():
    index = np.arange(12).reshape(3, 4)
    similarity = random_similarity(12)
    value = ssdc(similarity, (3, 4))
    for moved in (index[::-1], index[:, ::-1], index.T):
        order = moved.ravel()
        assert ssdc(similarity[np.ix_(order, order)], moved.shape) == pytest.approx(value)
    assert ssdc(similarity, (4, 3)) != pytest.approx(value, abs=1e-3)


def test_ssdc_takes_float32_as_it_comes_from_a_product():
    tokens = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    similarity = tokens @ tokens.T
    similarity[0, 1] *= 1 + 2e-7
    wide = similarity.astype(np.float64)
    assert ssdc(similarity, (8, 8)) == pytest.approx(scipy_ssdc(wide, (8, 8)), abs=1e-12)


def test_ssdc_manages_a_grid_of_64_by_64():
    similarity = -grid_distance((64, 64)).astype(np.float32)
    similarity[0, 1:] = similarity[1:, 0] = 0  # one patch like every other
    assert 0.99 < ssdc(similarity, (64, 64)) < 0.9999


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_ssdc_refuses_what_is_not_finite(bad):
    similarity = random_similarity(9)
    similarity[2, 3] = similarity[3, 2] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        ssdc(similarity, (3, 3))


@pytest.mark.parametrize(
    ("similarity", "grid", "message"),
    [
        (np.ones((9, 9)), (3, 3), r"every pair has similarity 1\.0"),
        (np.eye(9), (3, 3), r"every pair has similarity 0\.0"),
        (np.eye(9), (4, 4), r"needs a similarity of shape \(16, 16\), not \(9, 9\)"),
        (np.ones(9), (3, 3), r"not \(9,\)"),
        (np.eye(2), (1, 2), "fewer than 3 patches"),
        (np.eye(1), (1, 1), "fewer than 3 patches"),
        (np.eye(4), (2.0, 2), "grid must be"),
        (np.arange(16.0).reshape(4, 4), (2, 2), "must be symmetric.* differ by 9"),
    ],
)
def test_ssdc_refuses(similarity, grid, message):
    with pytest.raises(ValueError, match=message):
        ssdc(similarity, grid)


def test_random_orders_are_permutations_that_repeat_and_differ():
    orders = random_orders(10, 20, seed=3)
    assert orders.shape == (20, 10)
    assert orders.dtype == np.int64
    assert (np.sort(orders, axis=1) == np.arange(10)).all()
    assert len(np.unique(orders, axis=0)) == 20
    assert (random_orders(10, 20, seed=3) == orders).all()
    assert (random_orders(10, 5, seed=3) == orders[:5]).all()
    assert (random_orders(10, 20, seed=4) != orders).any()
    assert (random_orders(10, 20, seed=(3, 1)) != random_orders(10, 20, seed=(3, 2))).any()


@pytest.mark.parametrize(("patches", "n", "seed"), [(0, 1, 0), (4, 0, 0), (4, 1, None)])
def test_random_orders_refuse(patches, n, seed):
    with pytest.raises(ValueError, match="must be"):
        random_orders(patches, n, seed)


@pytest.mark.parametrize(("grid", "published"), [((8, 8), 0.03), ((14, 14), 0.016)])
def test_null_spread_is_the_known_band(grid, published):
    spread = null_spread(grid, orders=400)
    # 400 orders leave a relative error of about 1 / sqrt(800) = 3.5 %: four of them
    assert spread == pytest.approx(exact_null_spread(grid), rel=0.14)
    # the band is quoted to one or two digits, for similarities near but not equal to -D
    assert spread == pytest.approx(published, rel=0.25)


def test_null_spread_is_that_of_ssdc_itself():
    orders = random_orders(9, 50, seed=5)
    shuffled = [ssdc(-grid_distance((3, 3))[np.ix_(o, o)], (3, 3)) for o in orders]
    expected = np.std(shuffled, ddof=1)
    assert null_spread((3, 3), orders=50, seed=5) == pytest.approx(expected, abs=1e-12)


def test_null_spread_refuses():
    with pytest.raises(ValueError, match="at least 2 orders, not 1"):
        null_spread((3, 3), orders=1)
    with pytest.raises(ValueError, match="fewer than 3 patches"):
        null_spread((1, 2))


def test_delta_ssdc_is_depth_1_minus_depth_0():
    assert delta_ssdc([0.25, 0.75, 9.0]) == 0.5
    assert delta_ssdc(np.array([0.75, 0.25])) == -0.5


@pytest.mark.parametrize("curve", [[], [0.1], 0.1, [[0.1, 0.2]], [0.1, np.nan], [0.1, 0.2, np.inf]])
def test_delta_ssdc_refuses(curve):
    with pytest.raises(ValueError, match="curve"):
        delta_ssdc(curve)


def test_fragility_by_hand():
    assert fragility(0.8, 0.2) == 0.75
    assert fragility(0.5, 0.5) == 0
    assert fragility(0.5, 0.0) == 1
    assert fragility(0.4, 0.6) == pytest.approx(-0.5)  # legal, never clipped


@pytest.mark.parametrize(
    ("clean", "shifted"), [(0, 0), (0, 0.5), (1.1, 0.5), (0.5, -0.1), (np.nan, 0.5), (0.5, np.nan)]
)
def test_fragility_refuses(clean, shifted):
    with pytest.raises(ValueError, match="undefined at" if clean == 0 else "must lie"):
        fragility(clean, shifted)


def test_the_euclidean_distance_ranks_a_diagonal_step_between_one_and_two():
    far = grid_distance((2, 3), "l2")
    assert far[0, 4] == pytest.approx(2**0.5)
    assert far[0, 5] == pytest.approx(5**0.5)
    assert ssdc(-far, (2, 3), "l2") == pytest.approx(1)
    above = np.triu_indices(6, 1)
    wanted = spearmanr(-far[above], -grid_distance((2, 3))[above]).statistic
    assert ssdc(-far, (2, 3)) == pytest.approx(wanted)
    assert wanted < 1
    with pytest.raises(ValueError, match="unknown norm 'l3'; choose l1 or l2"):
        ssdc(-far, (2, 3), "l3")


def brute_force_mad(attention, grid):
    total, diagonal = 0.0, math.hypot(grid[0] - 1, grid[1] - 1)
    for query, row in enumerate(attention):
        for key, share in enumerate(row):
            (r, c), (s, d) = divmod(query, grid[1]), divmod(key, grid[1])
            total += share * math.hypot(r - s, c - d) / diagonal
    return total / len(attention)


def test_uniform_attention_by_hand():
    uniform = np.full((64, 64), 1 / 64)
    assert mean_attention_distance(uniform, (8, 8)) == pytest.approx(0.42, abs=0.005)
    wanted = brute_force_mad(uniform, (8, 8))
    assert mean_attention_distance(uniform, (8, 8)) == pytest.approx(wanted)
    without = mean_attention_distance(uniform, (8, 8), without_query=True)
    assert without == pytest.approx(wanted * 64 / 63)
    assert attention_entropy(uniform) == pytest.approx(1)
    assert self_attention_share(uniform) == pytest.approx(1 / 64)


def test_attention_to_oneself_by_hand():
    assert mean_attention_distance(np.eye(6), (2, 3)) == 0
    assert attention_entropy(np.eye(6)) == 0
    assert self_attention_share(np.eye(6)) == 1
    assert np.isnan(mean_attention_distance(np.eye(6), (2, 3), without_query=True))
    one_looks = np.eye(6)
    one_looks[0] = [0.5, 0.5, 0, 0, 0, 0]
    without = mean_attention_distance(one_looks, (2, 3), without_query=True)
    assert without == pytest.approx(1 / 5**0.5)  # only the query that looks elsewhere counts


@pytest.mark.parametrize("grid", [(4, 1), (1, 4)])
def test_attention_moved_by_one_patch_by_hand(grid):
    shifted = np.zeros((4, 4))
    shifted[[0, 1, 2, 3], [1, 2, 3, 2]] = 1
    assert mean_attention_distance(shifted, grid) == pytest.approx(1 / 3)
    assert mean_attention_distance(shifted, grid, without_query=True) == pytest.approx(1 / 3)
    assert attention_entropy(shifted) == 0
    assert self_attention_share(shifted) == 0
    half = (shifted + np.eye(4)) / 2
    assert mean_attention_distance(half, grid) == pytest.approx(1 / 6)
    assert mean_attention_distance(half, grid, without_query=True) == pytest.approx(1 / 3)
    assert attention_entropy(half) == pytest.approx(0.5)  # 1 bit of 2
    assert self_attention_share(half) == pytest.approx(0.5)


def test_attention_measures_take_images_and_heads_in_front_and_any_grid():
    attention = np.random.default_rng(0).dirichlet(np.ones(6), size=(5, 2, 6))
    reach = mean_attention_distance(attention, (3, 2))
    assert reach.shape == attention_entropy(attention).shape == (5, 2)
    assert reach[4, 1] == pytest.approx(brute_force_mad(attention[4, 1], (3, 2)))
    bits = [scipy_entropy(row) / np.log(6) for row in attention[4, 1]]
    assert attention_entropy(attention)[4, 1] == pytest.approx(np.mean(bits))
    share = np.mean([attention[4, 1, q, q] for q in range(6)])
    assert self_attention_share(attention)[4, 1] == pytest.approx(share)
    assert (reach != mean_attention_distance(attention, (2, 3))).all()


@pytest.mark.parametrize(
    ("attention", "grid", "message"),
    [
        (np.full((4, 4), 0.25), (2, 3), "grid .2, 3. has 6 patches but attention is among 4"),
        (np.full((4, 4), 0.3), (2, 2), "must sum to 1, but one is off by 0.2"),
        (np.eye(4) + np.nan, (2, 2), "negative, NaN or infinite"),
        ([[1.5, -0.5], [0, 1]], (1, 2), "negative, NaN or infinite"),
        (np.full((4, 3), 1 / 3), (2, 2), "must be .*, not of shape .4, 3."),
        (np.ones((0, 2, 2)), (1, 2), "not of shape .0, 2, 2."),
        (np.ones((1, 1)), (1, 1), "at least 2"),
    ],
)
def test_what_is_no_attention_is_refused(attention, grid, message):
    with pytest.raises(ValueError, match=message):
        mean_attention_distance(attention, grid)
    if "grid" not in message:
        with pytest.raises(ValueError, match=message):
            attention_entropy(attention)

"""Pure functions on arrays: how spatial a representation, how local attention, how fragile."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import rankdata


def grid_distance(grid: tuple[int, int], norm: str = "l1") -> NDArray[np.float64]:
    """Distance, in patch steps, between all patches of a grid.

    Args:
        grid: (rows, columns) of patches.
        norm: `l1` (as published) or `l2`.

    Returns:
        (patches, patches) float64, patches counted row by row.

    Raises:
        ValueError: `grid` is not two whole numbers of at least 1, or another norm.
    """
    if norm not in ("l1", "l2"):
        raise ValueError(f"unknown norm {norm!r}; choose l1 or l2")
    if len(grid) != 2 or any(not isinstance(n, int | np.integer) or n < 1 for n in grid):
        raise ValueError(f"grid must be (rows, columns), both whole and at least 1, not {grid!r}")
    row, column = np.divmod(np.arange(grid[0] * grid[1], dtype=np.float64), grid[1])
    across, down = np.abs(column[:, None] - column), np.abs(row[:, None] - row)
    return across + down if norm == "l1" else np.sqrt(across**2 + down**2)


def ssdc(similarity: ArrayLike, grid: tuple[int, int], norm: str = "l1") -> float:
    """Spatial similarity-distance correlation: are near patches represented alike?

    Spearman's rho over unordered pairs of patches, similarity against minus grid distance;
    unitless, in [-1, 1]; ties take average ranks, so only the order of the similarities counts.

    Args:
        similarity: (patches, patches), symmetric, row by row, without class token; in the paper
            the tokens' cosine similarity averaged over images.
        grid: (rows, columns), rows * columns = patches, at least 3 patches.
        norm: of the grid distance, `l1` (as published) or `l2`.

    Raises:
        ValueError: an unknown norm, shape and grid disagree, the grid is too small, a value is not
            finite, the matrix is not symmetric, or all pairs are equally similar.

    Source: arXiv:2606.00124, section 4.2.
    """
    closeness = _closeness(tuple(grid), norm)
    similarity = np.asarray(similarity, dtype=np.float64)
    patches = grid[0] * grid[1]
    if similarity.shape != (patches, patches):
        raise ValueError(
            f"grid {tuple(grid)} needs a similarity of shape {(patches, patches)}, "
            f"not {similarity.shape}"
        )
    if not np.isfinite(similarity).all():
        raise ValueError("similarity has a NaN or an infinity; check the tokens it came from")
    gap, size = np.abs(similarity - similarity.T).max(), np.abs(similarity).max()
    if gap > 1e-5 * size:  # a float32 Gram matrix is symmetric to about 1e-7
        raise ValueError(f"similarity must be symmetric, but S and its transpose differ by {gap}")
    pairs = similarity[_above_diagonal(patches)]
    if pairs.min() == pairs.max():
        raise ValueError(f"every pair has similarity {pairs[0]}: ranks, and SSDC, are undefined")
    return float(np.clip(closeness @ _unit(_ranks(pairs)), -1, 1))


def random_orders(patches: int, n: int, seed: int | Sequence[int]) -> NDArray[np.int64]:
    """`n` independent random orders of the patches; fewer are a prefix of more.

    Args:
        patches: entries of an order, at least 1.
        n: number of orders, at least 1.
        seed: for `numpy.random.default_rng`; a sequence such as (order_seed, seed) gives every
            training seed its own orders.

    Returns:
        (n, patches) int64, each row a permutation of range(patches).

    Raises:
        ValueError: `patches` or `n` is below 1, or `seed` is None (orders could not be redrawn).
    """
    if patches < 1 or n < 1:
        raise ValueError(f"patches and n must be at least 1, not {patches} and {n}")
    if seed is None:
        raise ValueError("seed must be a whole number (or several), not None")
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(patches) for _ in range(n)]).astype(np.int64)


@lru_cache
def null_spread(grid: tuple[int, int], orders: int = 1000, seed: int = 0) -> float:
    """Standard deviation of SSDC under one random order: the null band of a single order.

    The similarity is as spatial as can be (minus the distance), its patches are shuffled, and
    SSDC is taken on the grid as if they were not.

    Args:
        grid: (rows, columns), at least 3 patches.
        orders: number of random orders, at least 2; the result's own relative error is about
            1 / sqrt(2 * orders).
        seed: of the random orders.

    Raises:
        ValueError: the grid is too small or there are fewer than 2 orders.
    """
    if orders < 2:
        raise ValueError(f"a spread needs at least 2 orders, not {orders}")
    patches = len(grid_distance(grid))
    ranks = np.zeros((patches, patches))
    ranks[_above_diagonal(patches)] = _closeness(tuple(grid))
    ranks += ranks.T
    # ranks move along with their pairs, so ranking once is enough; every pair counts twice
    null = [
        np.vdot(ranks, ranks[np.ix_(order, order)]) / 2
        for order in random_orders(patches, orders, seed)
    ]
    return float(np.std(null, ddof=1))


def mean_attention_distance(
    attention: ArrayLike, grid: tuple[int, int], without_query: bool = False
) -> NDArray[np.float64]:
    """How far attention looks: weighted mean distance between query and key, mean over queries.

    Unitless: Euclidean distances between patch centres over the grid's diagonal, so 0 where every
    patch attends to itself and 1 at most (only from corner to corner); uniform attention on 8 x 8
    patches has 0.42. A value below half a patch step (0.05 there) does not mean "attends to
    neighbours": most of the attention then stays on the query (`self_attention_share`).

    Args:
        attention: (..., patches, patches), queries by keys, rows sum to 1, row by row, without
            class token; images and heads in front.
        grid: (rows, columns), rows * columns = patches, at least 2 patches.
        without_query: leave the query's own patch out and renormalise the rest; a query that
            attends to nothing else is left out, and where all do the result is NaN.

    Returns:
        (...) float64, one value per leading index.

    Raises:
        ValueError: not square, another number of patches than the grid, one patch only, a value
            negative or not finite, or a row that does not sum to 1.

    Source: arXiv:2605.16390; the normalisation and `without_query` are ours.
    """
    attention = _checked_attention(attention)
    distance = grid_distance(tuple(grid), "l2")
    if len(distance) != attention.shape[-1] or len(distance) < 2:
        raise ValueError(
            f"grid {tuple(grid)} has {len(distance)} patches but attention is among "
            f"{attention.shape[-1]}; it takes the same number, at least 2"
        )
    distance = distance / distance.max()
    reach = np.einsum("...qk,qk->...q", attention, distance)
    if without_query:
        elsewhere = np.einsum("...qk,qk->...q", attention, 1 - np.eye(len(distance)))
        looks = elsewhere > 0
        reach = np.divide(reach, elsewhere, out=np.zeros_like(reach), where=looks)
        queries = looks.sum(axis=-1)
        empty = np.full(queries.shape, np.nan)
        return np.divide(reach.sum(axis=-1), queries, out=empty, where=queries > 0)
    return reach.mean(axis=-1)


def attention_entropy(attention: ArrayLike) -> NDArray[np.float64]:
    """How spread out attention is: entropy of a row over that of a uniform one, mean over queries.

    0 where every query attends to one key, 1 where to all alike.

    Args: as `mean_attention_distance`, at least 2 keys.
    Returns: (...) float64.
    Raises: ValueError: as `mean_attention_distance`.
    Source: arXiv:2605.16390.
    """
    attention = _checked_attention(attention)
    if attention.shape[-1] < 2:
        raise ValueError("entropy over a single key is undefined; it takes at least 2 patches")
    bits = -xlogy(attention, attention).sum(axis=-1)
    return bits.mean(axis=-1) / np.log(attention.shape[-1])


def self_attention_share(attention: ArrayLike) -> NDArray[np.float64]:
    """Share of attention that stays on the query's own patch, in [0, 1], mean over queries.

    Args: as `mean_attention_distance`.
    Returns: (...) float64.
    Raises: ValueError: as `mean_attention_distance`.
    """
    return np.einsum("...qq->...", _checked_attention(attention)) / np.shape(attention)[-1]


def _checked_attention(attention: ArrayLike) -> NDArray[np.float64]:
    attention = np.asarray(attention, dtype=np.float64)
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2] or not attention.size:
        raise ValueError(
            f"attention must be (..., patches, patches), not of shape {attention.shape}"
        )
    if not (attention >= 0).all() or not np.isfinite(attention).all():
        raise ValueError("attention has a value that is negative, NaN or infinite")
    off = np.abs(attention.sum(axis=-1) - 1).max()
    if off > 1e-3:  # softmax in half precision is off by less
        raise ValueError(f"every row of attention must sum to 1, but one is off by {off:.3g}")
    return attention


def delta_ssdc(curve: ArrayLike) -> float:
    """Structure recovered by the first block: SSDC at depth 1 minus SSDC at depth 0.

    Args:
        curve: (depths,) SSDC by depth, under RPI in the paper.

    Raises:
        ValueError: fewer than 2 depths, or a value that is not finite.

    Source: arXiv:2606.00124, the section on alpha-scaling.
    """
    curve = np.asarray(curve, dtype=np.float64)
    if curve.ndim != 1 or len(curve) < 2:
        raise ValueError(f"curve must hold SSDC at 2 depths or more, not shape {curve.shape}")
    if not np.isfinite(curve).all():
        raise ValueError(f"curve has a NaN or an infinity: {curve}")
    return float(curve[1] - curve[0])


def fragility(clean: float, shifted: float) -> float:
    """Share of the accuracy that a corruption destroys: 1 - shifted / clean.

    Negative where the corruption helps; never clipped.

    Args:
        clean: accuracy without corruption, in (0, 1].
        shifted: accuracy of the same model on the same images, corrupted, in [0, 1].

    Raises:
        ValueError: an accuracy outside [0, 1], or a clean accuracy of 0 (undefined).

    Source: arXiv:2606.00124, section 4.
    """
    if not (0 <= clean <= 1 and 0 <= shifted <= 1):
        raise ValueError(f"accuracies must lie in [0, 1], not clean {clean} and shifted {shifted}")
    if clean == 0:
        raise ValueError("fragility is undefined at a clean accuracy of 0")
    return float(1 - shifted / clean)


@lru_cache(maxsize=4)  # the same grid again for every depth, order and model
def _closeness(grid: tuple[int, int], norm: str = "l1") -> NDArray[np.float64]:
    """(pairs,) average ranks of minus the distance, centred, of unit length; read-only."""
    distance = grid_distance(grid, norm)
    if len(distance) < 3:
        raise ValueError(f"grid {grid} has fewer than 3 patches, so all distances are equal")
    closeness = _unit(rankdata(-distance[_above_diagonal(len(distance))]))
    closeness.setflags(write=False)
    return closeness


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average ranks, equal to scipy's `rankdata`, which would be most of SSDC's time."""
    order = np.argsort(values)
    ordered = values[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])
    edges = np.flatnonzero(new)  # of the groups of equal values
    average = (edges[:-1] + edges[1:] + 1) / 2
    ranks = np.empty(len(values))
    ranks[order] = average[np.cumsum(new[:-1]) - 1]
    return ranks


def _above_diagonal(patches: int) -> NDArray[np.bool_]:
    """(patches, patches) mask of the pairs i < j; an eighth of the memory of triu_indices."""
    return ~np.tri(patches, dtype=bool)


def _unit(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred and of length 1, so that a dot product is a correlation."""
    centred = ranks - ranks.mean()
    return centred / np.linalg.norm(centred)

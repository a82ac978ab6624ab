"""Tidy tables to figures, in one look: a colour and a marker per condition or protocol everywhere.

Ours is solid with filled markers, the published curve thin and dashed with its +-1 sd band.
With three or more seeds ours has its 95 % Student-t band; with fewer, every run is drawn.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pe_utils.config import PROTOCOLS
from pe_utils.stats import mean_interval

COLOURS = {  # Okabe and Ito's colour-blind safe set
    "untrained_ablated": "#7f7f7f", "ablated": "#222222", "ape": "#0072b2",
    "spe": "#009e73", "rope": "#d55e00", "rpt": "#aa4499",
    "conv": "#56b4e9",
}  # fmt: skip
MARKERS = {
    "untrained_ablated": "P",
    "ablated": "o",
    "ape": "s",
    "spe": "D",
    "rope": "^",
    "rpt": "v",
    "conv": "X",
}
COLOURS |= {  # protocols: cold colours without CutMix, warm ones with it
    "baseline": "#222222", "+aa": "#0072b2", "+ls": "#56b4e9", "-cutmix": "#009e73",
    "+cutmix": "#d55e00", "-ls": "#cc79a7", "-aa": "#e69f00", "modern": "#882255",
    "+cutout": "#7f7f7f", "+mixup": "#999933",
}  # fmt: skip
MARKERS |= {"baseline": "o", "+aa": "s", "+ls": "D", "-cutmix": "^", "+cutmix": "o", "-ls": "s",
            "-aa": "D", "modern": "^", "+cutout": "P", "+mixup": "X"}  # fmt: skip
PRESET_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499")
MODEL_COLOURS = (*PRESET_COLOURS, "#222222", "#e69f00", "#56b4e9")
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "grid.color": "#e6e6e6"}


def depth_curves(
    ours: pd.DataFrame,
    published: dict[str, dict],
    conditions: Sequence[str],
    null_band: float,
) -> Figure:
    """SSDC against relative depth: a column per condition, a row for clean and for RPI.

    Args:
        ours: columns condition, seed, intervention (`none`, `rpi`), depth, ssdc; one site.
        published: intervention to condition to {"mean": [...], "std": [...]}.
        null_band: standard deviation of one random order's SSDC; shaded around zero (+-2).
    """
    rows = [i for i in ("none", "rpi") if (ours["intervention"] == i).any()]
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(
            len(rows), len(conditions), squeeze=False, layout="constrained",
            figsize=(0.6 + 2.2 * len(conditions), 0.6 + 2.2 * len(rows)), sharex=True, sharey=True,
        )  # fmt: skip
    for row, intervention in zip(axes, rows, strict=True):
        for axis, condition in zip(row, conditions, strict=True):
            if intervention == "rpi":
                axis.axhspan(-2 * null_band, 2 * null_band, color="#bbbbbb", alpha=0.35, lw=0)
            _published_curve(axis, published[intervention].get(condition), condition)
            mine = _of(ours, condition=condition, intervention=intervention)
            depth = mine.assign(x=mine["depth"] / max(1, mine["depth"].max()))
            _seeds(axis, depth.pivot(index="x", columns="seed", values="ssdc"), condition)
        row[0].set_ylabel(f"SSDC, {'clean' if intervention == 'none' else 'RPI'}\n(attn_input)")
    for axis, condition in zip(axes[0], conditions, strict=True):
        axis.set_title(condition, color=COLOURS[condition], fontweight="bold", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("relative depth")
        axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    _legend(figure, _seed_count(ours), null="rpi" in rows)
    plt.close(figure)  # shown by whoever returns it, and once
    return figure


def fragility_dots(ours: pd.DataFrame, published: pd.DataFrame, titles: dict[str, str]) -> Figure:
    """Fragility, a panel per corruption and a line per condition, published value hollow.

    Args:
        ours: columns condition, seed, corruption, fragility.
        published: columns condition, corruption, fragility, std; may lack a corruption.
        titles: corruption to panel title, in order.
    """
    conditions = [c for c in COLOURS if (ours["condition"] == c).any()]
    columns = min(3, len(titles))
    rows = -(-len(titles) // columns)
    with sns.axes_style("whitegrid", STYLE):
        size = 2.3 * columns + 1, 2.3 * rows + 0.6
        figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True,
                                    squeeze=False, layout="constrained")  # fmt: skip
    for axis, (corruption, title) in zip(axes.flat, titles.items(), strict=False):
        for y, condition in enumerate(conditions):
            colour, marker = COLOURS[condition], MARKERS[condition]
            theirs = _of(published, condition=condition, corruption=corruption)
            axis.errorbar(theirs["fragility"], [y + 0.2] * len(theirs), xerr=theirs["std"],
                          fmt=marker, mfc="white", color=colour, ms=6, lw=1)  # fmt: skip
            mine = _of(ours, condition=condition, corruption=corruption)["fragility"]
            axis.plot(mine, [y - 0.2] * len(mine), marker, color=colour, ms=7, alpha=0.9)
            if len(mine) >= 3:
                interval = mean_interval(mine)
                axis.plot([interval.low, interval.high], [y - 0.2] * 2, color=colour, lw=2)
        axis.set_title(title, fontsize=9)
        axis.axvline(0, color="#999999", lw=0.8)
    for axis in axes.flat[len(titles) :]:
        axis.set_visible(False)
    for column in axes.T:  # the last row may be short
        lowest = [axis for axis in column if axis.get_visible()][-1]
        lowest.set_xlabel("fragility")
        lowest.tick_params(labelbottom=True)
    axes[0, 0].set_yticks(range(len(conditions)), conditions)
    axes[0, 0].set_ylim(len(conditions) - 0.4, -0.6)
    _legend(figure, _seed_count(ours), line="none")
    plt.close(figure)  # shown by whoever returns it, and once
    return figure


def alpha_panels(ours: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Delta SSDC and JPEG fragility against alpha: a column per condition.

    Args: both: columns condition, seed, alpha, delta_ssdc, fragility; published also
        delta_ssdc_std and fragility_std (NaN where the paper gives none).
    """
    conditions = [c for c in ("ape", "spe") if (ours["condition"] == c).any()]
    quantities = {"delta_ssdc": "ΔSSDC under RPI\n(attn_input)", "fragility": "JPEG fragility"}
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(2, len(conditions), figsize=(1 + 3.2 * len(conditions), 5.2),
                                    sharex=True, sharey="row", squeeze=False,
                                    layout="constrained")  # fmt: skip
    for row, (column, label) in zip(axes, quantities.items(), strict=True):
        for axis, condition in zip(row, conditions, strict=True):
            theirs = _of(published, condition=condition).sort_values("alpha")
            _band(axis, theirs["alpha"], theirs[column], theirs[f"{column}_std"], condition)
            mine = _of(ours, condition=condition)
            _seeds(axis, mine.pivot(index="alpha", columns="seed", values=column), condition)
        row[0].set_ylabel(label)
    for axis, condition in zip(axes[0], conditions, strict=True):
        axis.set_title(condition, color=COLOURS[condition], fontweight="bold", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("α (factor on the positional table)")
    _legend(figure, _seed_count(ours))
    plt.close(figure)  # shown by whoever returns it, and once
    return figure


def effect_shares(rows: pd.DataFrame) -> Figure:
    """Our effects as shares of the published ones: a line per check, a colour per preset.

    Args: rows: columns claim, check, preset, published, mean, low, high (NaN: no interval).
    """
    low, high = -2.0, 3.0  # beyond: an arrow
    checks = rows.drop_duplicates(["claim", "check"])[["claim", "check"]].to_records(index=False)
    line = {tuple(check): y for y, check in enumerate(checks)}
    presets = list(dict.fromkeys(rows["preset"]))
    with sns.axes_style("whitegrid", STYLE):
        figure, axis = plt.subplots(figsize=(8, 0.6 + 0.21 * len(line)), layout="constrained")
    for i, preset in enumerate(presets):
        colour, shift = (
            PRESET_COLOURS[i % len(PRESET_COLOURS)],
            0.35 * (i + 0.5) / len(presets) - 0.175,
        )
        for row in _of(rows, preset=preset).itertuples():
            y, share = line[row.claim, row.check] + shift, row.mean / row.published
            axis.plot([row.low / row.published, row.high / row.published], [y, y], color=colour)
            marker = "o" if low <= share <= high else "<" if share < low else ">"
            axis.plot(np.clip(share, low, high), y, marker, color=colour, ms=4, clip_on=False)
        axis.plot([], [], "o-", color=colour, ms=4, label=preset)
    for x, style in ((0, "-"), (0.5, ":"), (1, "--")):
        axis.axvline(x, color="#444444", lw=0.9, ls=style, zorder=1)
    axis.set_xlim(low, high)
    axis.set_ylim(len(line) - 0.4, -0.6)
    axis.set_yticks(range(len(line)), [f"{claim}  {check}" for claim, check in line], fontsize=8)
    axis.set_xticks([-2, -1, 0, 0.5, 1, 2, 3], ["−2", "−1", "0", "½", "1", "2", "3"])
    axis.set_xlabel("ours / published")
    figure.legend(loc="outside lower center", ncols=len(presets), frameon=False)
    plt.close(figure)
    return figure


def variant_curves(rows: pd.DataFrame, conditions: Sequence[str]) -> Figure:
    """SSDC against relative depth, a line per choice of similarity and norm.

    Args: rows: columns condition, seed, intervention, similarity, norm, depth, ssdc.
    """
    looks = {("cosine", "l1"): ("-", 1.8), ("cosine", "l2"): (":", 1.5),
             ("centred", "l1"): ("--", 1.8), ("centred", "l2"): ("-.", 1.0)}  # fmt: skip
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(2, len(conditions), squeeze=False, layout="constrained",
                                    figsize=(0.6 + 2.0 * len(conditions), 4.8),
                                    sharex=True, sharey=True)  # fmt: skip
    for row, intervention in zip(axes, ("none", "rpi"), strict=True):
        for axis, condition in zip(row, conditions, strict=True):
            for (similarity, norm), (line, width) in looks.items():
                mine = _of(rows, condition=condition, intervention=intervention,
                           similarity=similarity, norm=norm)  # fmt: skip
                mine = mine.groupby("depth")["ssdc"].mean()
                axis.plot(mine.index / max(1, mine.index.max()), mine, line, lw=width,
                          color=COLOURS[condition])  # fmt: skip
        row[0].set_ylabel(f"SSDC, {'clean' if intervention == 'none' else 'RPI'}\n(attn_input)")
    for axis, condition in zip(axes[0], conditions, strict=True):
        axis.set_title(condition, color=COLOURS[condition], fontweight="bold", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("relative depth")
        axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    handles = [plt.Line2D([], [], color="#444444", ls=line, lw=width, label=f"{name}, {norm}")
               for (name, norm), (line, width) in looks.items()]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    plt.close(figure)
    return figure


def similarity_maps(maps: dict[str, np.ndarray], middle: int) -> Figure:
    """Similarity of every patch to one patch: a labelled row per name, a column per depth.

    Args: maps: name to (depths, rows, columns); middle: index of the one patch, left grey.
    """
    depths = len(next(iter(maps.values())))
    figure, axes = plt.subplots(len(maps), depths, figsize=(1.6 + 0.95 * depths, 0.95 * len(maps)),
                                squeeze=False, layout="constrained")  # fmt: skip
    for row, (name, stack) in zip(axes, maps.items(), strict=True):
        for axis, values in zip(row, stack, strict=True):
            shown = values.astype(float).copy()
            shown.flat[middle] = np.nan
            shown -= np.nanmean(shown)
            limit = np.nanmax(np.abs(shown))
            axis.imshow(shown, cmap="BrBG", vmin=-limit, vmax=limit)
            axis.set_facecolor("#777777")
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    for depth, axis in enumerate(axes[0]):
        axis.set_title(f"depth {depth}", fontsize=8)
    plt.close(figure)
    return figure


def along_training(rows: pd.DataFrame, quantities: dict[str, str], by: str = "condition") -> Figure:
    """Quantities against the training step (log scale), a panel each, a colour per condition.

    Args:
        rows: columns condition (or protocol), seed, step and the quantities.
        quantities: column to axis name.
        by: what a colour stands for, `condition` or `protocol`.
    """
    names = [c for c in COLOURS if (rows[by] == c).any()]
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, len(quantities), figsize=(3.3 * len(quantities), 3.6),
                                    squeeze=False, layout="constrained")  # fmt: skip
    for axis, (column, label) in zip(axes[0], quantities.items(), strict=True):
        for name in names:
            own = _of(rows, **{by: name})
            _seeds(axis, own.pivot(index="step", columns="seed", values=column), name)
        axis.set_xscale("log")
        axis.set_xlabel("training step")
        axis.set_ylabel(label)
    _condition_legend(figure, rows, "outside lower center", len(names), by)
    plt.close(figure)
    return figure


def mad_entropy_plane(
    rows: pd.DataFrame, uniform: dict[str, float], by: str = "protocol"
) -> Figure:
    """Every head at its mean attention distance and entropy: a panel per protocol (or model).

    Colour is depth; the cross is uniform attention.

    Args:
        rows: columns protocol (or `by`), seed, depth, head, mad, entropy; a marker per seed.
        uniform: protocol (or model) to the distance of uniform attention on its grid, in order.
    """
    depths = rows["depth"].max()
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, len(uniform), figsize=(1 + 3.3 * len(uniform), 3.6),
                                    sharex=True, sharey=True, squeeze=False,
                                    layout="constrained")  # fmt: skip
    for axis, (name, distance) in zip(axes[0], uniform.items(), strict=True):
        own = _of(rows, **{by: name})
        for i, (_, heads) in enumerate(own.groupby("seed")):
            axis.scatter(heads["mad"], heads["entropy"], c=heads["depth"], cmap="viridis",
                         vmin=0, vmax=depths, marker="o^sD"[i % 4], s=28, lw=0.4,
                         edgecolor="#222222", zorder=2 + i)  # fmt: skip
        axis.plot(distance, 1, "x", color="#d55e00", ms=8, mew=2)
        axis.set_title(name, fontweight="bold", fontsize=10)
        axis.set_xlabel("mean attention distance (of the diagonal)")
    axes[0, 0].set_ylabel("normalised entropy")
    axes[0, 0].set_xlim(0, max(0.5, rows["mad"].max() + 0.02))
    axes[0, 0].set_ylim(0, 1.05)
    scale = plt.cm.ScalarMappable(plt.Normalize(0, depths), "viridis")
    ticks = range(0, depths + 1, 1 + depths // 8)
    figure.colorbar(scale, ax=axes, label="depth", ticks=ticks, fraction=0.03)
    plt.close(figure)
    return figure


def protocol_dots(runs: pd.DataFrame, quantities: dict[str, str], lines: dict[str, list]) -> Figure:
    """Every run as a dot, a line per protocol, a panel per quantity.

    Args:
        runs: columns protocol, seed and the quantities.
        quantities: column to axis name.
        lines: column to published values, drawn dashed.
    """
    names = [p for p in PROTOCOLS if (runs["protocol"] == p).any()]
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, len(quantities), figsize=(1.2 + 2.9 * len(quantities),
                                    0.9 + 0.32 * len(names)), sharey=True, squeeze=False,
                                    layout="constrained")  # fmt: skip
    for axis, (column, label) in zip(axes[0], quantities.items(), strict=True):
        for value in lines.get(column, []):
            axis.axvline(value, color="#444444", lw=0.9, ls="--", zorder=1)
        for y, name in enumerate(names):
            values = _of(runs, protocol=name)[column]
            axis.plot(
                values, [y] * len(values), MARKERS[name], color=COLOURS[name], ms=7, alpha=0.8
            )
        axis.set_xlabel(label)
        axis.grid(visible=False, axis="y")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.4, -0.6)
    plt.close(figure)
    return figure


def protocol_scatter(runs: pd.DataFrame, x: tuple[str, str], ys: dict[str, str]) -> Figure:
    """One quantity against others, a dot per run, a panel per quantity on the y axis.

    Args: runs: columns protocol, seed and the quantities; x, ys: column and axis name.
    """
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, len(ys), figsize=(3.4 * len(ys), 3.8), squeeze=False,
                                    layout="constrained")  # fmt: skip
    for axis, (column, label) in zip(axes[0], ys.items(), strict=True):
        for name, own in runs.groupby("protocol"):
            axis.plot(own[x[0]], own[column], MARKERS[name], color=COLOURS[name], ms=8, alpha=0.85)
        axis.set_xlabel(x[1])
        axis.set_ylabel(label)
    _condition_legend(figure, runs, "outside lower center", 5, "protocol")
    plt.close(figure)
    return figure


def anchoring_scatter(sources: dict[str, pd.DataFrame]) -> Figure:
    """SSDC under RPI against JPEG fragility: a panel per source, a dot per run (or condition).

    Args: sources: panel title to columns condition, recovery, fragility.
    """
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, len(sources), figsize=(3.8 * len(sources), 3.8), sharex=True,
                                    sharey=True, squeeze=False, layout="constrained")  # fmt: skip
    for axis, (title, points) in zip(axes[0], sources.items(), strict=True):
        for name, own in points.groupby("condition"):
            axis.plot(own["recovery"], own["fragility"], MARKERS[name], color=COLOURS[name],
                      ms=8, alpha=0.85)  # fmt: skip
        axis.set_title(title)
        axis.set_xlabel("SSDC under RPI (attn_input)")
    axes[0, 0].set_ylabel("JPEG fragility")
    _condition_legend(figure, pd.concat(sources.values()), "outside lower center", 5)
    plt.close(figure)
    return figure


def attention_over_images(images: Tensor, maps: dict[str, np.ndarray], query: int) -> Figure:
    """Where one patch looks, over the images it looks at: a labelled row per name.

    Args:
        images: (n, 3, height, width) uint8; maps: name to (n, rows, columns), the attention of
        `query`, an index row by row, which is outlined.
    """
    n, (height, width) = len(images), images.shape[2:]
    rows, columns = next(iter(maps.values())).shape[1:]
    (down, across), (tall, wide) = divmod(query, columns), (height / rows, width / columns)
    figure, axes = plt.subplots(1 + len(maps), n, figsize=(1.8 + 1.2 * n, 1.25 * (1 + len(maps))),
                                squeeze=False, layout="constrained")  # fmt: skip
    for row, (name, stack) in zip(axes, {"image": None, **maps}.items(), strict=True):
        for i, axis in enumerate(row):
            axis.imshow(images[i].permute(1, 2, 0).numpy() if stack is None else stack[i],
                        cmap="magma", vmin=0, extent=(0, width, height, 0))  # fmt: skip
            axis.add_patch(plt.Rectangle((across * wide, down * tall), wide, tall, fill=False,
                                         edgecolor="#00d0d0", lw=1.5))  # fmt: skip
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    plt.close(figure)
    return figure


def probe_curves(ssdc: pd.DataFrame, null: dict[str, float]) -> Figure:
    """SSDC against relative depth, clean and under RPI, a line per model.

    Args:
        ssdc: columns model, intervention, depth, ssdc; one site.
        null: model to the spread that the mean of its orders has by chance; +-2 of the widest.
    """
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharey=True, layout="constrained")
    for axis, intervention in zip(axes, ("none", "rpi"), strict=True):
        for i, model in enumerate(null):
            own = _of(ssdc, model=model, intervention=intervention)
            colour, marker = _model_look(model, i)
            axis.plot(own["depth"] / max(1, own["depth"].max()), own["ssdc"], label=model,
                      color=colour, marker=marker, ms=4)  # fmt: skip
        axis.set_xlabel("relative depth")
        axis.set_title("clean" if intervention == "none" else "RPI", fontsize=10)
    widest = 2 * max(null.values())
    axes[1].axhspan(-widest, widest, color="#bbbbbb", alpha=0.35, lw=0)
    axes[0].set_ylabel("SSDC (attn_input)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
                  ncols=min(3, len(null)))  # fmt: skip
    plt.close(figure)
    return figure


def scaling_curves(scaling: pd.DataFrame) -> Figure:
    """Delta SSDC and recovery against the factor on each kind of position, a line per model.

    Args: scaling: columns model, kind (`table`, `rotary`, `bias`), factor, delta_ssdc, recovery.
    """
    lines, models = {"table": "-", "rotary": "--", "bias": ":"}, scaling["model"].unique()
    with sns.axes_style("whitegrid", STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
    for axis, column in zip(axes, ("delta_ssdc", "recovery"), strict=True):
        for i, model in enumerate(models):
            colour, marker = _model_look(model, i)
            for kind, own in _of(scaling, model=model).groupby("kind"):
                axis.plot(own["factor"], own[column], lines[kind], marker=marker, ms=4,
                          color=colour, label=f"{model}: {kind}")  # fmt: skip
        axis.set_xlabel("factor on the positions")
    axes[0].set_ylabel("ΔSSDC under RPI (attn_input)")
    axes[1].set_ylabel("SSDC under RPI, mean over depth ≥ 1")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
                  ncols=2)  # fmt: skip
    plt.close(figure)
    return figure


def training_paths(rows: pd.DataFrame, level: float) -> Figure:
    """Fragility against clean accuracy along training, a path per run; `level` is marked.

    Args: rows: columns condition, seed, step, clean_accuracy, fragility.
    """
    with sns.axes_style("whitegrid", STYLE):
        figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for (condition, _seed), run in rows.sort_values("step").groupby(["condition", "seed"]):
        colour, marker = COLOURS[condition], MARKERS[condition]
        axis.plot(run["clean_accuracy"], run["fragility"], color=colour, marker=marker, ms=3, lw=1)
        axis.plot(run["clean_accuracy"].iloc[-1], run["fragility"].iloc[-1], marker, ms=9,
                  color=colour)  # fmt: skip
    axis.axvline(level, color="#444444", lw=0.9, ls="--")
    axis.set_xlabel("clean accuracy")
    axis.set_ylabel("JPEG fragility")
    _condition_legend(figure, rows, "outside right upper", 1)
    plt.close(figure)
    return figure


def training_curves(log: pd.DataFrame, shorter: pd.DataFrame) -> Figure:
    """Held-out accuracy against epoch, a colour per condition; shorter runs are dotted.

    Args: both: columns condition, seed, epoch, held_out_accuracy.
    """
    with sns.axes_style("whitegrid", STYLE):
        figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for rows, line in ((log, "-"), (shorter, ":")):
        for (condition, _seed), run in rows.groupby(["condition", "seed"]):
            axis.plot(run["epoch"], run["held_out_accuracy"], line, color=COLOURS[condition],
                      marker=MARKERS[condition], ms=4, lw=1.3)  # fmt: skip
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy on held-out training images")
    _condition_legend(figure, log, "outside right upper", 1)
    plt.close(figure)
    return figure


def image_rows(rows: dict[str, Tensor]) -> Figure:
    """Small images, a labelled row per name.

    Args: rows: name to (n, 3, height, width) uint8, the same n in every row.
    """
    n = len(next(iter(rows.values())))
    figure, axes = plt.subplots(len(rows), n, figsize=(1.6 + 1.1 * n, 1.15 * len(rows)),
                                squeeze=False, layout="constrained")  # fmt: skip
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image.permute(1, 2, 0).numpy())
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    plt.close(figure)
    return figure


def _seeds(axis: Axes, values: pd.DataFrame, condition: str) -> None:
    """Ours: values indexed by x, a column per seed."""
    colour, marker = COLOURS[condition], MARKERS[condition]
    if values.shape[1] < 3:
        axis.plot(values.index, values, marker=marker, ms=5, color=colour, lw=1.8)
        return
    intervals = [mean_interval(row) for row in values.to_numpy()]
    axis.plot(values.index, [i.mean for i in intervals], marker=marker, ms=5, color=colour, lw=1.8)
    axis.fill_between(values.index, [i.low for i in intervals], [i.high for i in intervals],
                      color=colour, alpha=0.25, lw=0)  # fmt: skip


def _published_curve(axis: Axes, curve: dict | None, condition: str) -> None:
    if curve is not None:
        x = np.linspace(0, 1, len(curve["mean"]))
        _band(axis, x, np.array(curve["mean"]), np.array(curve["std"]), condition)


def _band(axis: Axes, x: Sequence, mean: Sequence, std: Sequence, condition: str) -> None:
    axis.plot(x, mean, "--", color=COLOURS[condition], lw=1)
    axis.fill_between(x, mean - std, mean + std, color=COLOURS[condition], alpha=0.12, lw=0)


def _of(rows: pd.DataFrame, **values: str) -> pd.DataFrame:
    """The rows with these values."""
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def _model_look(model: str, i: int) -> tuple[str, str]:
    """Colour and marker of the i-th model; a condition of this book keeps its own."""
    own = MODEL_COLOURS[i % len(MODEL_COLOURS)], "osD^vPX"[i % 7]
    return (COLOURS[model], MARKERS[model]) if model in COLOURS else own


def _condition_legend(
    figure: Figure, rows: pd.DataFrame, place: str, columns: int, by: str = "condition"
) -> None:
    """A colour and a marker for each condition (or protocol) that the rows hold."""
    shown = [c for c in COLOURS if (rows[by] == c).any()]
    handles = [plt.Line2D([], [], color=COLOURS[c], marker=MARKERS[c], label=c) for c in shown]
    figure.legend(handles=handles, loc=place, ncols=columns, frameon=False)


def _seed_count(ours: pd.DataFrame) -> int:
    return ours["seed"].nunique()


def _legend(figure: Figure, seeds: int, null: bool = False, line: str = "-") -> None:
    """Below the panels, so that it never covers a curve; says how many seeds are drawn."""
    who = "ours, one run (n = 1)" if seeds == 1 else f"ours, {seeds} runs (n = {seeds})"
    ours = plt.Line2D([], [], color="#444444", ls=line, marker="o", ms=5, lw=1.8, label=who)
    face = "white" if line == "none" else None
    theirs = plt.Line2D([], [], color="#444444", ls="none" if face else "--", lw=1, mfc=face,
                        marker="o" if face else None, label="published, mean ± 1 sd")  # fmt: skip
    band = [plt.Rectangle((0, 0), 1, 1, color="#bbbbbb", alpha=0.5, lw=0,
                          label="± 2 sd of one random order")] if null else []  # fmt: skip
    figure.legend(handles=[ours, theirs, *band], loc="outside lower center", ncols=3,
                  frameon=False, fontsize=9)  # fmt: skip

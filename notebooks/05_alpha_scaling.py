# %% [markdown]
# # Turning positions down: α-scaling
#
# **Question.** If a trained model's positional table is scaled by α, without retraining, do the
# structure recovered by the first block and the robustness go down together?
#
# **Claims held against the evidence** {cite}`mannes2026`: as α falls, ΔSSDC collapses and fragility
# rises, and both flatten for α ≤ 0.4 (A9, `ape`); for `spe` the same, but gradual (A10).
#
# ΔSSDC is SSDC(depth 1) − SSDC(depth 0) under RPI. Both accuracies of fragility are taken at that
# α. For RoPE the paper defines no α: there is no table to scale. The two encodings do not start
# alike: at initialisation the learned table has mean square 1, the sinusoidal one a half, and the
# patch tokens of photographs {glue:text}`tokens:.2f`, so one α does not mean one share of the
# signal.
#
# **Cost.** From the committed results: seconds. From nothing, at preset `laptop`: minutes
# per level of α and run on two CPU cores, after training, which took up to {glue:text}`minutes:.0f`
# minutes per run on one CPU thread.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int | None = None  # test images for ΔSSDC; None: the preset's number
n_accuracy: int | None = None  # test images for accuracy; None: the preset's number
n_orders: int = 64  # random orders that SSDC under RPI is averaged over
order_seed: int = 0  # seed of these orders
alphas: list[float] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]  # within 0 to 1
factors: list[float] = [0.0, 0.5, 1.0]  # of the angles of RoPE, within 0 to 1

# %%
from pe_utils.notebook import check_parameters

check_parameters(In)

# %%
import math

import pandas as pd
from myst_nb import glue

# %%
from pe_utils import claims, plots, results
from pe_utils.corruptions import corrupt
from pe_utils.data import default_images, load, normalise, runs
from pe_utils.evaluate import accuracy, anchoring_and_fragility, ssdc_under_rpi
from pe_utils.interventions import scale_positions, scale_rotary_angles
from pe_utils.metrics import delta_ssdc, fragility, random_orders
from pe_utils.models import build_vit
from pe_utils.train import load_model, trained_model

# %%
configs = runs(preset, ["ape", "spe"], seeds, data_root)
n_images = default_images(configs[0], "ssdc", data_root) if n_images is None else n_images
if n_accuracy is None:
    n_accuracy = default_images(configs[0], "accuracy", data_root)

# %%
patches = math.prod(configs[0].grid)
orders = {seed: random_orders(patches, n_orders, (order_seed, seed)) for seed in seeds}
for alpha in alphas:  # a factor out of range is refused now, not after training
    with scale_positions(build_vit(configs[0]), alpha):
        pass
rotary = runs(preset, ["rope"], seeds, data_root)
for factor in factors:
    with scale_rotary_angles(build_vit(rotary[0]), factor):
        pass
for_shift = {"images": n_accuracy, "corruption": "jpeg_q5"}
for_ssdc = {"images": n_images, "orders": n_orders, "order_seed": order_seed}
for_rope = {"accuracy_images": n_accuracy, "corruption": "jpeg_q5"} | for_ssdc

# %% [markdown]
# ## Measurement
#
# For every α, first what the first block recovers under RPI:

# %% tags=["hide-input"]
for config in configs:
    todo = [a for a in alphas if results.missing("alpha_ssdc", [config], alpha=a, **for_ssdc)]
    if todo:
        data = load(config.dataset, config.image_size, data_root)
        images, _ = data.test.first(n_images).images, data.test.first(n_accuracy)  # both exist
        model = trained_model(config, data)
    for alpha in todo:
        with scale_positions(model, alpha):
            curve = ssdc_under_rpi(model, images, orders[config.seed], depths=2)
        first, second = curve.loc[curve["site"] == "attn_input", "ssdc"]
        row = {"first": first, "second": second, "delta_ssdc": delta_ssdc([first, second])}
        results.add("alpha_ssdc", config, [row], alpha=alpha, **for_ssdc)

# %% [markdown]
# then both accuracies of fragility:

# %% tags=["hide-input"]
for config in configs:
    todo = [a for a in alphas if results.missing("alpha", [config], alpha=a, **for_shift)]
    if todo:
        data = load(config.dataset, config.image_size, data_root)
        test, model = data.test.first(n_accuracy), trained_model(config, data)
        disrupted = corrupt(test.images, "jpeg_q5")
    for alpha in todo:
        with scale_positions(model, alpha):
            clean = accuracy(model, test.images, test.labels)
            shifted = accuracy(model, disrupted, test.labels)
        row = {"clean_accuracy": clean, "shifted_accuracy": shifted}
        row["fragility"] = fragility(clean, shifted)
        results.add("alpha", config, [row], alpha=alpha, **for_shift)

# %% [markdown]
# For `rope` the paper defines no α, since there is no table. Its angles can be scaled, which is
# ours and another thing: every patch keeps a position, only closer to the others. RoPE acts in
# every block, so here structure is the mean of SSDC under RPI over the depths after a block.

# %% tags=["hide-input"]
for factor in factors:
    for config in results.missing("rotary", rotary, factor=factor, **for_rope):
        data = load(config.dataset, config.image_size, data_root)
        test, images = data.test.first(n_accuracy), data.test.first(n_images).images
        model, disrupted = trained_model(config, data), corrupt(test.images, "jpeg_q5")
        with scale_rotary_angles(model, factor):
            row = anchoring_and_fragility(model, images, orders[config.seed], test, disrupted)
        results.add("rotary", config, [row], factor=factor, **for_rope)

# %% [markdown]
# The same by hand, now, on the stored APE model and photographs that it never saw: how far does
# the answer move when the table is scaled? (Mean change of the logits, in their own spread.)

# %%
config = runs(preset, ["ape"], seeds, data_root)[0]
model, photos = load_model(config), normalise(load("photos", config.image_size).test.images)
logits = model(photos).detach()
moved = {}
for alpha in (0.0, 0.5, 1.0):
    with scale_positions(model, alpha):
        moved[alpha] = float((model(photos).detach() - logits).std() / logits.std())
pd.Series(moved, name="change of the logits").rename_axis("alpha").round(3).to_frame()

# %% [markdown]
# ## Result

# %%
keys = ["condition", "seed", "alpha"]
structure = pd.concat(results.read("alpha_ssdc", configs, alpha=a, **for_ssdc) for a in alphas)
shifts = pd.concat(results.read("alpha", configs, alpha=a, **for_shift) for a in alphas)
rows = structure[[*keys, "first", "second", "delta_ssdc"]].merge(
    shifts.drop(columns="run"), on=keys
)

# %%
published = claims.published_tables(results.published()).alpha

# %% tags=["hide-input"] mystnb={"figure": {"caption": "ΔSSDC under RPI (site attn_input) and JPEG fragility against the factor α on the positional table; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Solid: ours; dashed: published (ImageNet-100, ViT-S; for spe a single seed, without a band).", "name": "fig-alpha"}, "image": {"alt": "Four panels: delta SSDC above and JPEG fragility below, against alpha, for ape and spe, each with the published curve."}}
plots.alpha_panels(rows, published)

# %% [markdown]
# `first` and `second` are SSDC under RPI at depths 0 and 1, whose difference is ΔSSDC. The last column
# is the share lost of the accuracy *above chance*, left out where less than 5 points are above it: where
# clean accuracy falls to chance, fragility must fall to zero whatever the positions do.

# %%
columns = ["first", "second", "delta_ssdc", "clean_accuracy", "shifted_accuracy", "fragility"]
table = rows.groupby(["condition", "alpha"])[columns].mean()
above = table["clean_accuracy"] - 1 / configs[0].num_classes
lost = (table["clean_accuracy"] - table["shifted_accuracy"]) / above
table["above chance"] = lost.where(above > 0.05)
table.round(3)

# %% [markdown]
# Scaling the angles of `rope`:

# %%
turned = pd.concat(results.read("rotary", rotary, factor=f, **for_rope) for f in factors)
columns = ["recovery", "clean_accuracy", "shifted_accuracy", "fragility"]
angles = turned.groupby("factor")[columns].mean()
angles.round(3)

# %% tags=["hide-cell"]
ends = {"low": min(alphas), "high": max(alphas)}
for condition in ("ape", "spe"):
    for end, alpha in ends.items():
        row = table.loc[(condition, alpha)]
        glue(f"{condition}_delta_{end}", float(row["delta_ssdc"]), display=False)
        glue(f"{condition}_fs_{end}", float(row["fragility"]), display=False)
        glue(f"{condition}_clean_{end}", float(row["clean_accuracy"]), display=False)
        glue(f"{condition}_above_{end}", float(row["above chance"]), display=False)
tokens = build_vit(configs[0]).patch_embed(photos)
glue("tokens", float(tokens.detach().square().mean()), display=False)

# %% tags=["hide-cell"]
for condition, levels in published.sort_values("alpha").groupby("condition"):
    for end, row in {"low": levels.iloc[0], "high": levels.iloc[-1]}.items():
        glue(f"published_{condition}_fs_{end}", float(row["fragility"]), display=False)
        glue(f"published_{condition}_delta_{end}", float(row["delta_ssdc"]), display=False)
middle = sorted(factors)[len(factors) // 2]
for end, factor in {"low": min(factors), "middle": middle, "high": max(factors)}.items():
    for column in ("recovery", "fragility", "clean_accuracy"):
        glue(f"rope_{column}_{end}", float(angles.loc[factor, column]), display=False)
glue("middle", float(middle), display=False)
glue("published_low", float(published["alpha"].min()), display=False)
glue("published_high", float(published["alpha"].max()), display=False)
glue("low", float(ends["low"]), display=False)
glue("high", float(ends["high"]), display=False)

# %% tags=["hide-cell"]
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-alpha` and the table are drawn from
# {download}`alpha_ssdc.csv <../../results/laptop/alpha_ssdc.csv>` and
# {download}`alpha.csv <../../results/laptop/alpha.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); means over the seeds. Verdicts with their
# intervals stand on the [scoreboard](00_scoreboard.ipynb). The levels of α inside
# a model are not replicates.*
#
# - **A9, ape.** From α = {glue:text}`high:.1f` to {glue:text}`low:.1f`, ΔSSDC goes from
#   {glue:text}`ape_delta_high:.3f` to {glue:text}`ape_delta_low:.3f` and fragility from
#   {glue:text}`ape_fs_high:.3f` to {glue:text}`ape_fs_low:.3f`, while clean accuracy itself goes
#   from {glue:text}`ape_clean_high:.3f` to {glue:text}`ape_clean_low:.3f`.
# - **A10, spe.** ΔSSDC goes from {glue:text}`spe_delta_high:.3f` to {glue:text}`spe_delta_low:.3f`,
#   fragility from {glue:text}`spe_fs_high:.3f` to {glue:text}`spe_fs_low:.3f`, clean accuracy from
#   {glue:text}`spe_clean_high:.3f` to {glue:text}`spe_clean_low:.3f`.
# - **Published.** Over the paper's range of α, from {glue:text}`published_high:.1f` to
#   {glue:text}`published_low:.1f`, fragility goes from {glue:text}`published_ape_fs_high:.3f` to
#   {glue:text}`published_ape_fs_low:.3f` for ape and from {glue:text}`published_spe_fs_high:.3f` to
#   {glue:text}`published_spe_fs_low:.3f` for spe: it rises as the positions fade, while ΔSSDC goes
#   from {glue:text}`published_ape_delta_high:.3f` to {glue:text}`published_ape_delta_low:.3f` and from
#   {glue:text}`published_spe_delta_high:.3f` to {glue:text}`published_spe_delta_low:.3f`. Both accuracies of a
#   fragility are taken at the same α: where a model's clean accuracy falls towards chance, so does what it
#   can lose. The share lost *above chance*, the last column, goes for ape from
#   {glue:text}`ape_above_high:.3f` to {glue:text}`ape_above_low:.3f` while clean accuracy is still above chance,
#   which may be accuracy's doing too: along training fragility
#   [grows with accuracy](11_anchoring_and_fragility.ipynb).
# - **The angles of rope** (ours). From all of the angle over {glue:text}`middle:.2f` of it to none, SSDC
#   under RPI, averaged over all depths after the first block, goes from {glue:text}`rope_recovery_high:.3f` over
#   {glue:text}`rope_recovery_middle:.3f` to {glue:text}`rope_recovery_low:.3f`; from all to none, clean
#   accuracy from {glue:text}`rope_clean_accuracy_high:.3f` to
#   {glue:text}`rope_clean_accuracy_low:.3f`, fragility from {glue:text}`rope_fragility_high:.3f` to
#   {glue:text}`rope_fragility_low:.3f`.
#
# ## Limits
#
# Scaling the table takes away structure and signal at once: a model fed with tokens it was not
# trained on loses accuracy for both reasons, and this chapter cannot tell them apart.

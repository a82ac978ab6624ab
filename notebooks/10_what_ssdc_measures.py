# %% [markdown]
# # What SSDC measures, and what depends on the choice
#
# **Question.** SSDC is one number made by a string of choices: a site, a similarity, a distance, an
# average. Which of the shapes that the paper {cite}`mannes2026` reports depend on them? And how large
# can SSDC be by chance?
#
# **Cost.** From the committed results: seconds. From nothing, at preset `laptop`: a minute per run on
# one CPU thread, after training, which took up to {glue:text}`minutes:.0f` minutes per run.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int = 500  # test images for SSDC, at most; all of a smaller set
n_orders: int = 16  # random orders that SSDC under RPI is averaged over (elsewhere 64)
order_seed: int = 0  # seed of these orders

# %%
from pe_utils.notebook import check_parameters

check_parameters(In)

# %%
import math

import pandas as pd
from myst_nb import glue

# %%
from pe_utils import plots, results
from pe_utils.capture import token_similarity
from pe_utils.data import default_images, load, normalise, runs
from pe_utils.evaluate import ssdc_variants
from pe_utils.interventions import permute_tokens
from pe_utils.metrics import null_spread, random_orders
from pe_utils.train import load_model, trained_model

# %% [markdown]
# ## By chance
#
# The scatter of one random order, for a similarity as spatial as the distance itself: its patches are
# shuffled, and SSDC is taken on the grid as if they were not. (A similarity that a few patches dominate,
# each alike to all others, can scatter more.) The mean of $n$ orders
# scatters $\sqrt n$ times less, so an error of 0.01 needs as many orders as the last column says.

# %%
chance = pd.DataFrame({"patches on a side": range(4, 17, 2)})
chance["spread of one order"] = [null_spread((n, n)) for n in chance["patches on a side"]]
chance["orders for 0.01"] = (chance["spread of one order"] / 0.01).pow(2).map(math.ceil)
chance.round(3)

# %% [markdown]
# ## Measurement
#
# SSDC at `attn_input` with the published choices (cosine, L1) and with each of them changed: the mean
# patch token of every image subtracted first (centred), and the Euclidean distance (L2).

# %%
conditions = ["ablated", "ape", "spe", "rope", "rpt"]
configs = runs(preset, conditions, seeds, data_root)
n_images = min(n_images, default_images(configs[0], "ssdc", data_root))
patches = math.prod(configs[0].grid)
orders = {seed: random_orders(patches, n_orders, (order_seed, seed)) for seed in seeds}
clean = {"images": n_images, "intervention": "none", "orders": 0, "order_seed": 0}
rpi = {"images": n_images, "intervention": "rpi", "orders": n_orders, "order_seed": order_seed}
keys = ["similarity", "norm", "depth"]

# %% tags=["hide-input"]
for config in results.missing("ssdc_variants", configs, **clean):
    data = load(config.dataset, config.image_size, data_root)
    images, model = data.test.first(n_images).images, trained_model(config, data)
    results.add("ssdc_variants", config, ssdc_variants(model, images), **clean)

# %% tags=["hide-input"]
for config in results.missing("ssdc_variants", configs, **rpi):
    data, found = load(config.dataset, config.image_size, data_root), []
    images, model = data.test.first(n_images).images, trained_model(config, data)
    for order in orders[config.seed]:
        with permute_tokens(model, order):
            found.append(ssdc_variants(model, images))
    mean = pd.concat(found).groupby(keys, as_index=False)["ssdc"].mean()
    results.add("ssdc_variants", config, mean, **rpi)

# %% [markdown]
# ## Result

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC over relative depth (site attn_input) with the published choices (cosine, L1) and with each choice changed, clean above and under RPI below; mean over n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`.", "name": "fig-variants"}, "image": {"alt": "A panel per condition and intervention with four curves: cosine or centred similarity, L1 or L2 distance."}}
rows = pd.concat(results.read("ssdc_variants", configs, **settings) for settings in (clean, rpi))
plots.variant_curves(rows, conditions)

# %% [markdown]
# Averaged over depth:

# %%
means = rows.groupby(["intervention", "condition", "similarity", "norm"])["ssdc"].mean()
table = means.unstack(["similarity", "norm"])
order = [(kind, condition) for kind in ("none", "rpi") for condition in conditions]
table.loc[order].round(3)

# %% [markdown]
# ## What the number looks like
#
# How alike is every patch to the one in the middle? Averaged over the embedded photographs, with the
# committed weights, now: one row per condition in place, one under a single random order. Green is more
# alike than the map's average, brown less; grey is the patch itself.

# %%
photos = normalise(load("photos", configs[0].image_size).test.images)
order, grid = random_orders(patches, 1, order_seed)[0], configs[0].grid
middle, maps = (grid[0] // 2) * grid[1] + grid[1] // 2, {}
for config in runs(preset, conditions, seeds[:1], data_root):
    model = load_model(config)
    for name, sequence in (("in place", range(patches)), ("RPI", order)):
        with permute_tokens(model, list(sequence)), token_similarity(model, ["attn_input"]) as seen:
            model(photos)
        maps[f"{config.condition}, {name}"] = seen.mean()["attn_input"][:, middle].reshape(
            -1, *grid
        )

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Cosine similarity of every patch to the one in the middle (site attn_input), averaged over photographs; columns are depths. Each map is centred on its own mean and scaled to its own range, since SSDC sees ranks only.", "name": "fig-maps"}, "image": {"alt": "A grid of small maps, a row per condition in place and under RPI, a column per depth."}}
plots.similarity_maps(maps, middle)

# %% tags=["hide-cell"]
for intervention in ("none", "rpi"):
    both = table.loc[intervention]
    norm_gap = (both["cosine", "l2"] - both["cosine", "l1"]).abs()
    centred_gap = both["centred", "l1"] - both["cosine", "l1"]
    glue(f"norm_gap_{intervention}", float(norm_gap.max()), display=False)
    for condition in conditions:
        glue(f"centred_{intervention}_{condition}", float(centred_gap[condition]), display=False)
curves = rows[(rows["condition"] == "ablated") & (rows["intervention"] == "none")]
curves = curves[curves["norm"] == "l1"].groupby(["similarity", "depth"])["ssdc"].mean()
for similarity in ("cosine", "centred"):
    curve = curves[similarity]
    glue(f"step_{similarity}", float(curve.iloc[1] - curve.iloc[0]), display=False)
    glue(f"rise_{similarity}", float(curve.iloc[-1] - curve.iloc[0]), display=False)

# %% tags=["hide-cell"]
eight = null_spread((8, 8))
glue("orders_8", math.ceil((eight / 0.01) ** 2), display=False)
glue("spread_8", eight, display=False)
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("n_images", n_images, display=False)
glue("n_orders", n_orders, display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-variants` and its table are drawn from
# {download}`ssdc_variants.csv <../../results/laptop/ssdc_variants.csv>`; the other sites stand in
# {download}`ssdc.csv <../../results/laptop/ssdc.csv>`, SSDC image by image in
# {download}`ssdc_per_image.csv <../../results/laptop/ssdc_per_image.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s), {glue:text}`n_images` test images and {glue:text}`n_orders` orders, fewer
# than elsewhere; no criterion belongs to this chapter.*
#
# - **Chance.** On a grid of 8 by 8 patches one order scatters by {glue:text}`spread_8:.3f`:
#   {glue:text}`orders_8` orders bring the error of the mean to a hundredth.
# - **Distance.** L2 instead of L1 moves the mean over depth by at most
#   {glue:text}`norm_gap_none:.3f` clean and {glue:text}`norm_gap_rpi:.3f` under RPI.
# - **Centring** moves it by {glue:text}`centred_none_ablated:.3f` clean for ablated,
#   {glue:text}`centred_none_ape:.3f` for ape, {glue:text}`centred_none_spe:.3f` for spe,
#   {glue:text}`centred_none_rope:.3f` for rope and {glue:text}`centred_none_rpt:.3f` for rpt; under
#   RPI by {glue:text}`centred_rpi_ape:.3f`, {glue:text}`centred_rpi_spe:.3f` and
#   {glue:text}`centred_rpi_rope:.3f` for ape, spe and rope.
# - **The rise of ablated** (A2) goes with the choice: from depth 0 to 1 it is
#   {glue:text}`step_cosine:.3f` with the plain cosine and {glue:text}`step_centred:.3f` once the mean
#   token is subtracted, over the whole depth {glue:text}`rise_cosine:.3f` and
#   {glue:text}`rise_centred:.3f`. With the part that all patches of an image share taken out, SSDC
#   starts high.
# - **The maps**, of one seed and on photographs, agree with the numbers: under RPI ape and spe keep a
#   round neighbourhood at the index of the middle patch; those of ablated, rope and rpt are scattered.
#
# ## Limits
#
# SSDC asks about a monotone fall of similarity with distance. A representation that encodes the index
# without such a fall, or one that separates rows from columns, is structured and may still score low.

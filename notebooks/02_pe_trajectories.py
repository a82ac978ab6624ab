# %% [markdown]
# # Positional encodings: where structure enters and where it goes
#
# **Question.** Spatial structure in clean images may come from content alone. Which part of it
# follows the token *index*, what enters with the positional encoding, and at which depth?
#
# **Claims held against the evidence** {cite}`mannes2026`: under RPI the ablated model collapses
# to zero (A3), every model with a positional encoding recovers (A4), additive tables inject early
# and decay while RoPE accumulates with depth (A5).
#
# **Cost.** From the committed results: seconds. From nothing, at preset `laptop`: minutes
# per run on two CPU cores, after training, which took up to {glue:text}`minutes:.0f`
# minutes per run on one CPU thread.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int | None = None  # test images; None: the preset's number
n_accuracy: int | None = None  # test images for accuracy; None: the preset's number
n_orders: int = 64  # random orders that SSDC under RPI is averaged over
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
from pe_utils.data import default_images, load, runs
from pe_utils.evaluate import (
    accuracy,
    accuracy_under_rpi,
    ssdc_by_depth,
    ssdc_per_image,
    ssdc_under_rpi,
)
from pe_utils.interventions import permute_tokens
from pe_utils.metrics import null_spread, random_orders
from pe_utils.notebook import figure_html
from pe_utils.train import load_model, trained_model

# %%
conditions = ["ablated", "ape", "spe", "rope"]
configs = runs(preset, conditions, seeds, data_root)
n_images = default_images(configs[0], "ssdc", data_root) if n_images is None else n_images
if n_accuracy is None:
    n_accuracy = default_images(configs[0], "accuracy", data_root)
clean = {"images": n_images, "intervention": "none", "orders": 0, "order_seed": 0}
patches = math.prod(configs[0].grid)
orders = {seed: random_orders(patches, n_orders, (order_seed, seed)) for seed in seeds}
rpi = {"images": n_images, "intervention": "rpi", "orders": n_orders, "order_seed": order_seed}
per_image = {"images": n_images, "order_seed": order_seed}
shuffled = {"images": n_accuracy, "orders": n_orders, "order_seed": order_seed}

# %% [markdown]
# ## Measurement
#
# Each loop runs over what is missing in the results and trains a model that does not exist yet.
# First on clean images with the tokens in place:

# %% tags=["hide-input"]
for config in results.missing("ssdc", configs, **clean):
    data = load(config.dataset, config.image_size, data_root)
    images = data.test.first(n_images).images
    model = trained_model(config, data)
    results.add("ssdc", config, ssdc_by_depth(model, images), **clean)

# %% [markdown]
# Then under RPI: the patches are shuffled after their embedding, the positions stay at their
# index, and SSDC asks whether neighbouring *indices* are represented alike. One order alone has
# a spread of its own, so SSDC is averaged over the orders:

# %% tags=["hide-input"]
for config in results.missing("ssdc", configs, **rpi):
    data = load(config.dataset, config.image_size, data_root)
    images = data.test.first(n_images).images
    model = trained_model(config, data)
    results.add("ssdc", config, ssdc_under_rpi(model, images, orders[config.seed]), **rpi)

# %% [markdown]
# What the shuffle costs in accuracy: every order meets its own share of the test images.

# %% tags=["hide-input"]
for config in results.missing("accuracy", configs, images=n_accuracy):
    data = load(config.dataset, config.image_size, data_root)
    test, model = data.test.first(n_accuracy), trained_model(config, data)
    measured = {"accuracy": accuracy(model, test.images, test.labels)}
    results.add("accuracy", config, [measured], images=n_accuracy)

# %% tags=["hide-input"]
for config in results.missing("accuracy_rpi", configs, **shuffled):
    data = load(config.dataset, config.image_size, data_root)
    test, model = data.test.first(n_accuracy), trained_model(config, data)
    under = accuracy_under_rpi(model, test.images, test.labels, orders[config.seed])
    results.add("accuracy_rpi", config, [{"accuracy": under}], **shuffled)

# %% [markdown]
# Another quantity, reported beside: SSDC of every image by itself, averaged over the images, in
# place and with one order for each image. It has no published counterpart.

# %% tags=["hide-input"]
for kind in ("none", "rpi"):
    own = {"intervention": kind} | per_image
    for config in results.missing("ssdc_per_image", configs, **own):
        data = load(config.dataset, config.image_size, data_root)
        images, model = data.test.first(n_images).images, trained_model(config, data)
        one_each = random_orders(patches, n_images, (order_seed, config.seed, 1))
        curves = ssdc_per_image(model, images, one_each if kind == "rpi" else None)
        results.add("ssdc_per_image", config, curves, **own)

# %% [markdown]
# The same by hand, now, on the stored APE model and photographs that it never saw: one random
# order, SSDC at every depth.

# %%
config = runs(preset, ["ape"], seeds, data_root)[0]
model, photos = load_model(config), load("photos", config.image_size)
with permute_tokens(model, orders[config.seed][0]):
    live = ssdc_by_depth(model, photos.test.images)
live.pivot(index="site", columns="depth", values="ssdc").round(3)

# %% [markdown]
# ## Result

# %%
ssdc = pd.concat([results.read("ssdc", configs, **settings) for settings in (clean, rpi)])
at_input = ssdc[ssdc["site"] == "attn_input"]
paper = results.published()["arxiv_2606_00124"]
published = {"none": paper["ssdc_clean"], "rpi": paper["ssdc_rpi"]}
null = null_spread(configs[0].grid)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC against relative depth (site attn_input), clean above, under RPI below; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Solid: ours; dashed: published (ImageNet-100, ViT-S, one order), mean ± 1 sd over four seeds. Grey: what one random order shows by chance (± 2 sd) on our grid; our curve is the mean of {glue:text}`n_orders` orders.", "name": "fig-trajectories"}, "image": {"alt": "Eight small panels: SSDC over depth for ablated, ape, spe and rope, clean and under RPI, each with the published curve."}}
plots.depth_curves(at_input, published, conditions, null)

# %%
table = at_input.groupby(["condition", "intervention", "depth"])["ssdc"].mean().unstack("depth")
table.loc[conditions].round(3)

# %% [markdown]
# Accuracy in place and under RPI, and SSDC under RPI averaged over depth in its two versions: of
# the similarity averaged over images (64 orders, one for all images), and image by image:

# %%
by_image = results.read("ssdc_per_image", configs, **per_image)
by_image = by_image[(by_image["site"] == "attn_input") & (by_image["intervention"] == "rpi")]
under = at_input[at_input["intervention"] == "rpi"]
in_place = results.read("accuracy", configs, images=n_accuracy).groupby("condition")["accuracy"]
moved = results.read("accuracy_rpi", configs, **shuffled).groupby("condition")["accuracy"]
beside = {"accuracy": in_place.mean(), "accuracy under RPI": moved.mean()}
beside["SSDC under RPI"] = under.groupby("condition")["ssdc"].mean()
beside["per image"] = by_image.groupby("condition")["ssdc"].mean()
beside = pd.DataFrame(beside).loc[conditions]
beside.round(3)

# %% tags=["hide-cell"]
rpi_curve = table.xs("rpi", level="intervention")
recovery = rpi_curve.iloc[:, 1:].mean(axis=1)
for condition in rpi_curve.index:
    theirs = published["rpi"][condition]["mean"][1:]
    glue(f"published_recovery_{condition}", sum(theirs) / len(theirs), display=False)
    glue(f"recovery_{condition}", float(recovery[condition]), display=False)
    glue(f"published_first_{condition}", published["rpi"][condition]["mean"][0], display=False)
    glue(f"first_{condition}", float(rpi_curve.loc[condition].iloc[0]), display=False)
    glue(f"second_{condition}", float(rpi_curve.loc[condition].iloc[1]), display=False)
    glue(f"last_{condition}", float(rpi_curve.loc[condition].iloc[-1]), display=False)
    glue(f"peak_{condition}", int(rpi_curve.loc[condition].idxmax()), display=False)

# %% tags=["hide-cell"]
for condition, row in beside.iterrows():
    glue(f"accuracy_{condition}", float(row["accuracy"]), display=False)
    glue(f"accuracy_rpi_{condition}", float(row["accuracy under RPI"]), display=False)
glue("largest_ablated", float(rpi_curve.loc["ablated"].abs().max()), display=False)
glue("null", float(null), display=False)
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("n_orders", n_orders, display=False)
glue("data_name", configs[0].dataset, display=False)

# %% tags=["hide-cell"]
figure = plots.depth_curves(at_input, published, conditions, null)
alt = "SSDC over depth for ablated, ape, spe and rope, clean and with shuffled patches (RPI)."
caption = (
    "Spatial structure (SSDC) over depth, clean above and with the patches shuffled under fixed "
    f"positions below. Solid: ours, {configs[0].dataset}, n = {len(seeds)}; dashed: "
    "published (ImageNet-100, ViT-S). Grey: ± 2 sd of one random order; ours, a mean of many, scatters less."
)
glue("landing_figure", figure_html(figure, alt, caption), display=False)

# %% [markdown]
# {numref}`fig-trajectories` and the table are drawn from
# {download}`ssdc.csv <../../results/laptop/ssdc.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); means over the seeds. Verdicts with their
# intervals stand on the [scoreboard](00_scoreboard.ipynb).*
#
# - **A3, collapse.** Without positions the largest |SSDC| under RPI at any depth is
#   {glue:text}`largest_ablated:.3f`; one random order alone scatters by
#   {glue:text}`null:.3f`. For this condition zero is not an empirical finding: shuffling the
#   tokens of a model without positions only relabels its representations, so SSDC averaged over
#   all orders is exactly zero. It tests the instrument.
# - **A4, recovery.** Averaged over depths 1 to last, SSDC under RPI is
#   {glue:text}`recovery_ape:.3f` for ape, {glue:text}`recovery_spe:.3f` for spe and
#   {glue:text}`recovery_rope:.3f` for rope (published: {glue:text}`published_recovery_ape:.3f`,
#   {glue:text}`published_recovery_spe:.3f`, {glue:text}`published_recovery_rope:.3f`).
# - **A5, shape.** The highest value under RPI stands at depth {glue:text}`peak_ape` for ape,
#   {glue:text}`peak_spe` for spe and {glue:text}`peak_rope` for rope. Claimed is a peak at a sixth of the
#   depth (here after one block) and a decay from there for the additive tables, and a rise to the last depth
#   for rope.
#   Where spe is high already at depth 0, before any block has acted, the table itself carries the order of
#   the grid into the attention input: nothing had to be recovered. That it is so much higher here than in
#   the paper ({glue:text}`first_spe:.2f` against {glue:text}`published_first_spe:.2f`) may come from the
#   strength of the table beside the patch tokens, from the grid or from the width; we did not find out.
#   From depth 0 to 1 to the last, SSDC under RPI goes
#   {glue:text}`first_ape:.3f`, {glue:text}`second_ape:.3f`, {glue:text}`last_ape:.3f` for ape;
#   {glue:text}`first_spe:.3f`, {glue:text}`second_spe:.3f`, {glue:text}`last_spe:.3f` for spe;
#   {glue:text}`first_rope:.3f`, {glue:text}`second_rope:.3f`, {glue:text}`last_rope:.3f` for rope.
# - **What the shuffle costs.** Accuracy goes from {glue:text}`accuracy_ape:.3f` in place to
#   {glue:text}`accuracy_rpi_ape:.3f` under RPI for ape, from {glue:text}`accuracy_spe:.3f` to
#   {glue:text}`accuracy_rpi_spe:.3f` for spe and from {glue:text}`accuracy_rope:.3f` to
#   {glue:text}`accuracy_rpi_rope:.3f` for rope: these models use where content stands. Ablated, which
#   cannot know, stays at {glue:text}`accuracy_rpi_ablated:.3f`.
#
# ## Limits
#
# Six blocks on 32-pixel images are not twelve on ImageNet-100: curves are compared on relative
# depth, and their level depends on the grid. The published curves are one order each; ours
# average many, so ours scatter less for the same model. SSDC sees rank correlation with distance
# only: a representation that knows its index in another way would count as zero.

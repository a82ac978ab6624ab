# %% [markdown]
# # A table without a frame: random permutation training
#
# **Question.** Is it the presence of a positional table that anchors representations to the
# index, or that an index always means the same place? RPT keeps the table of `ape` and takes the
# meaning away: at every training step the patches arrive in a fresh random order.
#
# **Claim held against the evidence** {cite}`mannes2026`: RPT does not recover under RPI although
# the table is present; its clean curve rises gradually like the ablated one (A6).
#
# **Cost.** From the committed results: seconds. From nothing, at preset `laptop`: minutes
# per run on two CPU cores, after training, which took up to {glue:text}`minutes:.0f`
# minutes per run on one CPU thread.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int | None = None  # test images for SSDC; None: the preset's number
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
from pe_utils.metrics import null_spread, random_orders, ssdc
from pe_utils.train import load_model, trained_model

# %%
conditions = ["ablated", "rpt", "ape"]
configs = runs(preset, conditions, seeds, data_root)
n_images = default_images(configs[0], "ssdc", data_root) if n_images is None else n_images
if n_accuracy is None:
    n_accuracy = default_images(configs[0], "accuracy", data_root)
clean = {"images": n_images, "intervention": "none", "orders": 0, "order_seed": 0}
patches = math.prod(configs[0].grid)
orders = {seed: random_orders(patches, n_orders, (order_seed, seed)) for seed in seeds}
rpi = {"images": n_images, "intervention": "rpi", "orders": n_orders, "order_seed": order_seed}
shuffled = {"images": n_accuracy, "orders": n_orders, "order_seed": order_seed}
per_image = {"images": n_images, "order_seed": order_seed}

# %% [markdown]
# ## Measurement
#
# As in the chapter before, on clean images and under RPI, with `rpt` between the condition it
# should resemble (`ablated`) and the one whose table it shares (`ape`):

# %% tags=["hide-input"]
for config in results.missing("ssdc", configs, **clean):
    data = load(config.dataset, config.image_size, data_root)
    images = data.test.first(n_images).images
    model = trained_model(config, data)
    results.add("ssdc", config, ssdc_by_depth(model, images), **clean)

# %% tags=["hide-input"]
for config in results.missing("ssdc", configs, **rpi):
    data = load(config.dataset, config.image_size, data_root)
    images = data.test.first(n_images).images
    model = trained_model(config, data)
    results.add("ssdc", config, ssdc_under_rpi(model, images, orders[config.seed]), **rpi)

# %% [markdown]
# and the accuracy that the shuffle costs (every order meets its own share of the test images):

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
# The tables themselves, live: how alike are the rows of neighbouring positions? This is SSDC of
# the learned table, no image involved.

# %%
table_ssdc = {}
for config in runs(preset, ["ape", "rpt"], seeds, data_root):
    rows = load_model(config).pos_embed.detach()[0, 1:].double()
    cosine = pd.DataFrame((rows / rows.norm(dim=1, keepdim=True)).numpy())
    table_ssdc[config.condition, config.seed] = ssdc(cosine @ cosine.T, config.grid)
table_ssdc = pd.Series(table_ssdc, name="SSDC of the positional table").rename_axis(["", "seed"])
table_ssdc.unstack("seed").round(3)

# %% [markdown]
# ## Result

# %%
rows = pd.concat([results.read("ssdc", configs, **settings) for settings in (clean, rpi)])
at_input = rows[rows["site"] == "attn_input"]
paper = results.published()["arxiv_2606_00124"]
published = {"none": paper["ssdc_clean"], "rpi": paper["ssdc_rpi"]}
null = null_spread(configs[0].grid)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC against relative depth (site attn_input) without positions, with a table trained on shuffled patches (rpt) and with the same table trained in place (ape); n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Solid: ours; dashed: published (ImageNet-100, ViT-S, one order), mean ± 1 sd over four seeds. Grey: what one random order shows by chance (± 2 sd) on our grid.", "name": "fig-rpt"}, "image": {"alt": "Six small panels: SSDC over depth for ablated, rpt and ape, clean and under RPI, each with the published curve."}}
plots.depth_curves(at_input, published, conditions, null)

# %%
table = at_input.groupby(["condition", "intervention", "depth"])["ssdc"].mean().unstack("depth")
table.loc[conditions].round(3)

# %% [markdown]
# Accuracy in place and under RPI:

# %%
in_place = results.read("accuracy", configs, images=n_accuracy).groupby("condition")["accuracy"]
moved = results.read("accuracy_rpi", configs, **shuffled).groupby("condition")["accuracy"]
accuracies = pd.DataFrame({"in place": in_place.mean(), "under RPI": moved.mean()}).loc[conditions]
accuracies.round(3)

# %% tags=["hide-cell"]
for condition in conditions:
    moved, in_place = table.loc[(condition, "rpi")], table.loc[(condition, "none")]
    glue(f"accuracy_{condition}", float(accuracies["in place"][condition]), display=False)
    glue(f"accuracy_rpi_{condition}", float(accuracies["under RPI"][condition]), display=False)
    glue(f"largest_{condition}", float(moved.abs().max()), display=False)
    glue(f"recovery_{condition}", float(moved.iloc[1:].mean()), display=False)
    glue(f"rise_{condition}", float(in_place.iloc[-1] - in_place.iloc[0]), display=False)
theirs = published["rpi"]["rpt"]["mean"][1:]
glue("published_recovery_rpt", sum(theirs) / len(theirs), display=False)
for condition, value in table_ssdc.groupby(level=0).mean().items():
    glue(f"table_{condition}", float(value), display=False)
glue("null", float(null), display=False)

# %% tags=["hide-cell"]
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-rpt` and the table are drawn from
# {download}`ssdc.csv <../../results/laptop/ssdc.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); means over the seeds. Verdicts with their
# intervals stand on the [scoreboard](00_scoreboard.ipynb).*
#
# - **A6, under RPI.** The largest |SSDC| over depth is {glue:text}`largest_rpt:.3f` for rpt,
#   {glue:text}`largest_ablated:.3f` for ablated and {glue:text}`largest_ape:.3f` for ape; one
#   random order alone scatters by {glue:text}`null:.3f`.
# - **A6, clean.** From the first to the last depth SSDC changes by {glue:text}`rise_rpt:.3f` for
#   rpt and {glue:text}`rise_ablated:.3f` for ablated.
# - **The tables.** Trained in place, the table's own rows have SSDC {glue:text}`table_ape:.3f`;
#   trained on shuffled patches {glue:text}`table_rpt:.3f`. Without a stable map, training gives no
#   reason for neighbouring indices to have similar rows.
# - **Accuracy.** In place and under RPI rpt reaches {glue:text}`accuracy_rpt:.3f` and
#   {glue:text}`accuracy_rpi_rpt:.3f`, ape {glue:text}`accuracy_ape:.3f` and
#   {glue:text}`accuracy_rpi_ape:.3f`, ablated {glue:text}`accuracy_ablated:.3f` in both.
#
# ## Limits
#
# That rpt shows no structure under RPI is no empirical finding: its table is drawn at random and its
# patches come in every order alike, so no pair of indices is special and the mean of SSDC over
# training runs is zero by symmetry (see {ref}`Methods <null>`). A single run keeps the chance likeness of
# its random table. The index may still matter to rpt in ways that SSDC cannot see. What can tell whether a
# model uses a frame is the accuracy it loses when the patches are shuffled, in the list above, and what a
# corruption costs it, in [the next chapter](04_fragility.ipynb).
#
# RPT differs from `ape` in more than the frame: its task is harder, since its patches arrive
# without order, and at equal epochs it may simply be less trained.

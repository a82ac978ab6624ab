# %% [markdown]
# # When anchoring appears in training
#
# **Question.** Does a model become anchored to the index before it becomes accurate, with it, or
# after? And does fragility fall when anchoring rises?
#
# The paper {cite}`mannes2026` looks at trained models only. While a run trains, its weights are kept
# at a dozen steps, evenly spaced on a logarithmic axis; here each of these snapshots goes through
# the instruments of the other chapters, on fewer images and orders.
#
# **Cost.** From the committed results: seconds. From nothing: minutes per run on one CPU thread,
# after training, which took up to {glue:text}`minutes:.0f` minutes per run.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int = 200  # test images for SSDC, at most; all of a smaller set
n_accuracy: int = 2000  # test images for accuracy, at most; all of a smaller set
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
from pe_utils.corruptions import corrupt
from pe_utils.data import default_images, load, runs
from pe_utils.evaluate import anchoring_and_fragility
from pe_utils.metrics import null_spread, random_orders
from pe_utils.train import load_snapshots, trained_model

# %%
conditions = ["ablated", "ape", "spe", "rope", "rpt"]
configs = runs(preset, conditions, seeds, data_root)
n_images = min(n_images, default_images(configs[0], "ssdc", data_root))
n_accuracy = min(n_accuracy, default_images(configs[0], "accuracy", data_root))
patches = math.prod(configs[0].grid)
orders = {seed: random_orders(patches, n_orders, (order_seed, seed)) for seed in seeds}
settings = {"images": n_images, "orders": n_orders, "order_seed": order_seed}
settings |= {"accuracy_images": n_accuracy, "corruption": "jpeg_q5"}

# %% [markdown]
# ## Measurement
#
# For every snapshot of every run: SSDC under RPI, averaged over the depths after a block, and both
# accuracies of JPEG fragility.

# %% tags=["hide-input"]
for config in results.missing("snapshots", configs, **settings):
    data, found = load(config.dataset, config.image_size, data_root), []
    trained_model(config, data)
    test, images = data.test.first(n_accuracy), data.test.first(n_images).images
    disrupted = corrupt(test.images, "jpeg_q5")
    for step, model in load_snapshots(config):
        row = anchoring_and_fragility(model, images, orders[config.seed], test, disrupted)
        found.append({"step": step} | row)
    results.add("snapshots", config, found, **settings)

# %% [markdown]
# ## Result

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC under RPI averaged over the depths after a block (site attn_input), clean accuracy and JPEG fragility along training; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. With three seeds or more: mean and 95 % band; with fewer, every run.", "name": "fig-snapshots"}, "image": {"alt": "Three panels against the training step on a logarithmic axis, a curve per condition."}}
rows = results.read("snapshots", configs, **settings)
quantities = {"recovery": "SSDC under RPI (attn_input)", "clean_accuracy": "clean accuracy"}
plots.along_training(rows, quantities | {"fragility": "JPEG fragility"})

# %% [markdown]
# When is each half of the way done? The first snapshot at which a quantity has reached half of its
# final value, in training steps (the mean over seeds of the logarithm, taken back):

# %%
wide = rows.pivot(
    index="step", columns=["condition", "seed"], values=["recovery", "clean_accuracy"]
)
chance = wide["clean_accuracy"].iloc[0]
gain = pd.concat({"recovery": wide["recovery"], "accuracy gained": wide["clean_accuracy"] - chance})
half = gain.groupby(level=0).apply(lambda part: (part.droplevel(0) >= part.iloc[-1] / 2).idxmax())
steps = half.T.groupby("condition").agg(lambda s: math.exp(s.map(math.log).mean()))
steps.loc[["ape", "spe", "rope"]].round(0).astype(int)

# %% [markdown]
# The last snapshots, in numbers:

# %%
last = rows[rows["step"] == rows["step"].max()].groupby("condition")
columns = ["recovery", "clean_accuracy", "shifted_accuracy", "fragility"]
last[columns].mean().loc[conditions].round(3)

# %% tags=["hide-cell"]
for condition in ("ape", "spe", "rope"):
    glue(f"half_recovery_{condition}", float(steps.loc[condition, "recovery"]), display=False)
    glue(
        f"half_accuracy_{condition}", float(steps.loc[condition, "accuracy gained"]), display=False
    )
late = rows[rows["step"] >= sorted(rows["step"].unique())[-6]].groupby(["condition", "step"])
course = late["fragility"].mean().unstack("step").loc[conditions]
rises = course.index[course.iloc[:, -1] > course.iloc[:, 0]]
glue("fragility_rises", ", ".join(rises) or "none", display=False)
first = rows[rows["step"] == rows["step"].min()].groupby("condition")["recovery"].mean()
for condition in conditions:
    glue(f"start_{condition}", float(first[condition]), display=False)
table = 1 / math.sqrt(patches * (patches - 1) / 2)  # chance likeness of the rows of a random table
null = math.hypot(table, null_spread(configs[0].grid) / math.sqrt(n_orders))
glue("null", 2 * null / math.sqrt(len(seeds)), display=False)

# %% tags=["hide-cell"]
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-snapshots` and the tables are drawn from
# {download}`snapshots.csv <../../results/laptop/snapshots.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); no claim of the paper, and no
# criterion, belongs to this chapter.*
#
# - **At the start.** After the first step SSDC under RPI is {glue:text}`start_ape:.3f` for ape,
#   {glue:text}`start_spe:.3f` for spe and {glue:text}`start_rope:.3f` for rope (two standard
#   deviations of chance, in the orders and in a random table: {glue:text}`null:.3f`). A sinusoidal table is spatial
#   before anything is learnt, and a learned table drawn at random is not.
# - **Which comes first.** Half of the final anchoring is reached after about
#   {glue:text}`half_recovery_ape:.0f` steps by ape and {glue:text}`half_recovery_rope:.0f` by rope (by spe at
#   the first snapshot),
#   half of the accuracy gained after {glue:text}`half_accuracy_ape:.0f` and
#   {glue:text}`half_accuracy_rope:.0f`.
# - **Does fragility fall when anchoring rises?** Over the second half of the snapshots fragility rises in
#   {glue:text}`fragility_rises`, anchored or not, as accuracy does. What is left when accuracy is held fixed
#   is the question of [the chapter before](11_anchoring_and_fragility.ipynb).
#
# ## Limits
#
# A step named here is the first snapshot past the half: the half itself lies between it and the snapshot
# before. Half of the final value depends on how long training goes on. Snapshots are few and their spacing is a
# factor of two: an order of events closer than that cannot be
# told. That two things appear together in training does not make one the cause of the other.

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
other: str | None = "laptop_tiny"  # a second preset, shown where its snapshots are stored
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
from pe_utils.stats import half_way
from pe_utils.train import load_snapshots, trained_model

# %%
conditions = ["ablated", "ape", "spe", "rope", "rpt"]
configs = runs(preset, conditions, seeds, data_root)
found = runs(other, conditions, seeds, data_root) if other and other != preset else []
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
    data, measured = load(config.dataset, config.image_size, data_root), []
    trained_model(config, data)
    test, images = data.test.first(n_accuracy), data.test.first(n_images).images
    disrupted = corrupt(test.images, "jpeg_q5")
    for step, model in load_snapshots(config):
        row = anchoring_and_fragility(model, images, orders[config.seed], test, disrupted)
        measured.append({"step": step} | row)
    results.add("snapshots", config, measured, **settings)

# %% [markdown]
# ## Result

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC under RPI averaged over the depths after a block (site attn_input), clean accuracy and JPEG fragility along training; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. With three seeds or more: mean and 95 % band; with fewer, every run.", "name": "fig-snapshots"}, "image": {"alt": "Three panels against the training step on a logarithmic axis, a curve per condition."}}
rows = results.read("snapshots", configs, **settings)
quantities = {"recovery": "SSDC under RPI (attn_input)", "clean_accuracy": "clean accuracy"}
plots.along_training(rows, quantities | {"fragility": "JPEG fragility"})

# %% [markdown]
# The last snapshots, in numbers:

# %%
last = rows[rows["step"] == rows["step"].max()].groupby("condition")
columns = ["recovery", "clean_accuracy", "shifted_accuracy", "fragility"]
last[columns].mean().loc[conditions].round(3)

# %% [markdown]
# ## On the second data set
#
# The same for the runs of a second preset whose snapshots were measured in the same way:

# %%
seen, seen_settings = [], settings
if found:
    most = {kind: default_images(found[0], kind, data_root) for kind in ("ssdc", "accuracy")}
    seen_settings = settings | {"images": min(n_images, most["ssdc"])}
    seen_settings |= {"accuracy_images": min(n_accuracy, most["accuracy"])}
    absent = {c.seed for c in results.missing("snapshots", found, **seen_settings)}
    seen = [config for config in found if config.seed not in absent]
print(f"{len(seen)} runs of {other} are stored")

# %% tags=["hide-input"] mystnb={"figure": {"caption": "As above, on the second data set, {glue:text}`other_name`; n = {glue:text}`other_seeds` training seed(s).", "name": "fig-snapshots-other"}, "image": {"alt": "Three panels against the training step on a logarithmic axis, a curve per condition, on the second data set."}}
rows_there = results.read("snapshots", seen, **seen_settings) if seen else rows[:0]
plots.along_training(rows_there, quantities | {"fragility": "JPEG fragility"}) if seen else None

# %% [markdown]
# ## Which comes first?
#
# The step at which each quantity has first reached half of its final value (accuracy: of what it gained
# on the first snapshot), interpolated between snapshots; the mean over seeds of its logarithm, taken back:

# %%
both, halves = pd.concat([rows.assign(where=""), rows_there.assign(where="other_")]), []
for (where, condition, _), course in both.groupby(["where", "condition", "seed"]):
    step, learnt = course["step"].tolist(), course["clean_accuracy"]
    half = {"recovery": half_way(step, course["recovery"].tolist()),
            "accuracy gained": half_way(step, (learnt - learnt.iloc[0]).tolist())}  # fmt: skip
    half = {quantity: math.log(found) for quantity, found in half.items()}
    halves.append({"where": where, "condition": condition} | half)
steps = pd.DataFrame(halves).groupby(["where", "condition"]).mean().map(math.exp)
names = {"": configs[0].dataset, "other_": seen[0].dataset if seen else other}
steps.loc[:, ["ape", "spe", "rope"], :].rename(index=names).round(0).astype(int)

# %% tags=["hide-cell"]
for condition in ("ape", "spe", "rope"):
    for name, column in (("recovery", "recovery"), ("accuracy", "accuracy gained")):
        for where in both["where"].unique():
            step = float(steps.loc[(where, condition), column])
            glue(f"{where}half_{name}_{condition}", step, display=False)
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
if seen:
    end = rows_there[rows_there["step"] == rows_there["step"].max()]
    end = end.groupby("condition")["recovery"].mean()
    glue("other_end_rope", float(end["rope"]), display=False)
    glue("other_seeds", rows_there["seed"].nunique(), display=False)
    glue("other_name", seen[0].dataset, display=False)

# %% tags=["hide-cell"]
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
last_steps = sorted(rows["step"].unique())[-2:]
glue("ratio", float(last_steps[1] / last_steps[0]), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-snapshots` and the tables are drawn from
# {download}`snapshots.csv <../../results/laptop/snapshots.csv>`, {numref}`fig-snapshots-other` from
# {download}`its twin <../../results/laptop_tiny/snapshots.csv>`.
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
#   the first snapshot), half of the accuracy gained after {glue:text}`half_accuracy_ape:.0f` and
#   {glue:text}`half_accuracy_rope:.0f`. On the second data set anchoring takes about
#   {glue:text}`other_half_recovery_ape:.0f` and {glue:text}`other_half_recovery_rope:.0f` steps, accuracy
#   {glue:text}`other_half_accuracy_ape:.0f` and {glue:text}`other_half_accuracy_rope:.0f`; but rope ends at only
#   {glue:text}`other_end_rope:.3f` there, close to chance, and half of that says little.
# - **Does fragility fall when anchoring rises?** Over the second half of the snapshots fragility rises in
#   {glue:text}`fragility_rises`, anchored or not, as accuracy does. What is left when accuracy is held fixed
#   is the question of [the chapter before](11_anchoring_and_fragility.ipynb).
#
# ## Limits
#
# A step named here is interpolated between two snapshots that lie a factor of {glue:text}`ratio:.1f` apart: an
# order of events closer than that cannot be told. Half of the final value depends on how long training goes on.
# That two things appear together in training does not make one the cause of the other.

# %% [markdown]
# # Does anchoring predict fragility?
#
# **Question.** The paper {cite}`mannes2026` finds that conditions whose representations are anchored
# to the index are also the less fragile ones (A12). Five conditions are five points. Does the relation
# hold between runs of one condition? And is anchoring a better guess at fragility than plain accuracy?
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

import numpy as np
import pandas as pd
from myst_nb import glue

# %%
from pe_utils import claims, plots, results
from pe_utils.corruptions import corrupt
from pe_utils.data import default_images, load, runs
from pe_utils.evaluate import anchoring_and_fragility
from pe_utils.metrics import random_orders
from pe_utils.stats import at_level, correlation_interval, mean_interval
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
# The snapshots along training, as in [the next chapter](12_when_it_appears.ipynb): anchoring is SSDC
# under RPI averaged over the depths after a block, fragility is that of JPEG quality 5.

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
# ## At the end of training

# %%
rows = results.read("snapshots", configs, **settings)
final = rows[rows["step"] == rows["step"].max()]
means = final.groupby("condition")[["recovery", "clean_accuracy", "fragility"]].mean()
means.loc[conditions].round(3)

# %% [markdown]
# Pearson's r with fragility. *Between*: over the five condition means. *Within*: over all runs, each
# condition's mean subtracted first, so that only differences between seeds are left (it needs
# several seeds). A correlation over all runs at once would mostly be that of the five means again.

# %%
columns = ["recovery", "clean_accuracy", "fragility"]
inside = final[columns] - final.groupby("condition")[columns].transform("mean")
r = {"between conditions": means.corr()["fragility"]}
if len(seeds) > 2:
    r["within conditions"] = inside.corr()["fragility"]
r = pd.DataFrame(r).drop("fragility")
r.round(2)

# %% [markdown]
# With five points an r is known badly: the interval by Fisher's transformation, and the published values put
# through the same formula. Within conditions every mean that was subtracted costs a pair.

# %%
tables = claims.published_tables(results.published())
curve = tables.ssdc[(tables.ssdc["intervention"] == "rpi") & (tables.ssdc["depth"] > 0)]
theirs = tables.fragility[tables.fragility["corruption"] == "jpeg_q5"].set_index("condition")
theirs = theirs[["clean_accuracy", "fragility"]].loc[conditions]
theirs.insert(0, "recovery", curve.groupby("condition")["ssdc"].mean().loc[conditions])
both = {"ours": means, "published": theirs}
bounds = {(whose, column): correlation_interval(frame[column], frame["fragility"])
          for whose, frame in both.items() for column in ("recovery", "clean_accuracy")}  # fmt: skip
if len(seeds) > 2:
    columns = inside["recovery"].tolist(), inside["fragility"].tolist()
    bounds["within conditions", "recovery"] = correlation_interval(*columns, groups=len(means))
intervals = pd.DataFrame(bounds, ["r", "low", "high"]).T
intervals.round(2)

# %% [markdown]
# And each rival with the other held fixed, a partial correlation over the five means (two degrees of freedom):

# %%
inverse = np.linalg.inv(means.corr())
spread = np.sqrt(np.diag(inverse))
partial = pd.Series(-inverse[2, :2] / spread[2] / spread[:2], means.columns[:2], name="partial r")
partial.round(2).to_frame()

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC under RPI, averaged over the depths after a block, against JPEG fragility. Left: ours at the end of training, a dot per run, n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`; right: the published means of the same five conditions.", "name": "fig-anchoring"}, "image": {"alt": "Two scatter plots, ours and published: anchoring on the x axis, fragility on the y axis, a colour per condition."}}
plots.anchoring_scatter({"ours": final, "published": theirs.reset_index()})

# %% [markdown]
# ## The rival: accuracy
#
# A model with little accuracy has little to lose. Along training every run passes through the same
# accuracies, so that conditions can be compared where they are equally accurate: at the lowest final
# accuracy of any run, every quantity interpolated between snapshots.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "JPEG fragility against clean accuracy along training, a path per run, last snapshot large; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Dashed: the accuracy that all runs reach, at which they are compared.", "name": "fig-rival"}, "image": {"alt": "Paths of fragility against clean accuracy, a colour per condition."}}
level = final["clean_accuracy"].min()
plots.training_paths(rows, level)

# %%
matched = pd.DataFrame(
    [{"condition": c, "seed": s} | {k: at_level(run["clean_accuracy"].tolist(), run[k].tolist(), level)
     for k in ("recovery", "fragility")} for (c, s), run in rows.groupby(["condition", "seed"])]
)  # fmt: skip
equal = matched.groupby("condition")[["recovery", "fragility"]].mean().loc[conditions]
r_equal = correlation_interval(equal["recovery"], equal["fragility"])
print("r of the two: {:.2f} [{:.2f}, {:.2f}]".format(*r_equal))
equal.round(3)

# %% [markdown]
# The contrasts of A7, paired by seed, at the end of training and at that accuracy, with 95 % intervals:

# %%
ends = {"at the end": final, "at equal accuracy": matched}
pairs = [(a, b) for a in ("ablated", "rpt") for b in ("ape", "spe", "rope")]
pairs += [("ape", "rope"), ("spe", "rope")]
contrasts = {}
for when, table in ends.items():
    by_seed = table.pivot(index="seed", columns="condition", values="fragility")
    for a, b in pairs:
        contrasts[f"{a} - {b}", when] = vars(mean_interval(by_seed[a] - by_seed[b]))
contrasts = pd.DataFrame(contrasts).T
texts = contrasts.apply(claims.interval_text, axis=1).unstack()
texts.loc[[f"{a} - {b}" for a, b in pairs], [*ends]]

# %% [markdown]
# The same for a table turned down ([α-scaling](05_alpha_scaling.ipynb)), as far as it is measured: fragility at
# that α minus that of a snapshot of the same run at the same clean accuracy. (A scaled table is also an input that
# the model never saw, and it is measured on more test images than the snapshots.)

# %%
chosen, differences = runs(preset, ["ape", "spe"], seeds, data_root), {}
most = default_images(chosen[0], "accuracy", data_root)
for alpha in (0.2, 0.4, 0.6):
    at = {"alpha": alpha, "images": most, "corruption": "jpeg_q5"}
    if results.missing("alpha", chosen, **at):
        continue
    for run in results.read("alpha", chosen, **at).itertuples():
        path = rows[rows["run"] == run.run].sort_values("step")
        seen = [path[name].tolist() for name in ("clean_accuracy", "fragility")]
        differences[run.condition, alpha, run.seed] = run.fragility - at_level(
            *seen, run.clean_accuracy
        )

# %%
differences = pd.Series(differences, dtype=float).dropna()
turned = pd.DataFrame()
if len(differences):
    by_alpha = differences.groupby(level=[0, 1])
    turned = by_alpha.apply(lambda d: vars(mean_interval(d))).unstack()
turned.apply(claims.interval_text, axis=1) if len(turned) else "α is not measured here"

# %% tags=["hide-cell"]
for when, key in zip(ends, ("end", "equal"), strict=True):
    for a, b in pairs:
        glue(f"{key}_{a}_{b}", texts.loc[f"{a} - {b}", when], display=False)
for condition, alpha in turned.index:
    text = claims.interval_text(turned.loc[(condition, alpha)])
    glue(f"turned_{condition}_{alpha:.1f}", text, display=False)

# %% tags=["hide-cell"]
for column in ("recovery", "clean_accuracy"):
    glue(f"r_{column}", float(r.loc[column, "between conditions"]), display=False)
    said = float(intervals.loc[("published", column), "r"])
    glue(f"published_r_{column}", said, display=False)
ours = intervals.loc["ours"]
glue("n_exclude", int((ours["low"] * ours["high"] > 0).sum()), display=False)
glue("r_matched", "{:.2f} [{:.2f}, {:.2f}]".format(*r_equal), display=False)
for column, found in partial.items():
    glue(f"partial_{column}", float(found), display=False)
if len(seeds) > 2:
    within = "{:.2f} [{:.2f}, {:.2f}]".format(*intervals.loc[("within conditions", "recovery")])
glue("r_within", within if len(seeds) > 2 else "not defined", display=False)

# %% tags=["hide-cell"]
glue("order_final", " < ".join(means["fragility"].sort_values().index), display=False)
glue("order_matched", " < ".join(equal["fragility"].sort_values().index), display=False)
for name, fragilities in (("final", means["fragility"]), ("matched", equal["fragility"])):
    gap = fragilities[["ablated", "rpt"]].mean() - fragilities[["ape", "spe", "rope"]].mean()
    glue(f"gap_{name}", float(gap), display=False)

# %% tags=["hide-cell"]
apart = [
    theirs["fragility"][group].mean() for group in (["ablated", "rpt"], ["ape", "spe", "rope"])
]
glue("published_gap", float(apart[0] - apart[1]), display=False)
glue("level", float(level), display=False)
training = results.read("training", configs)
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-anchoring`, {numref}`fig-rival` and the tables are drawn from
# {download}`snapshots.csv <../../results/laptop/snapshots.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s). The verdict on A12 stands on the
# [scoreboard](00_scoreboard.ipynb); everything else here is exploration without a criterion.*
#
# - **Between conditions**, at the end of training, fragility correlates with anchoring at
#   r = {glue:text}`r_recovery:.2f` and with clean accuracy at r = {glue:text}`r_clean_accuracy:.2f`. In the
#   paper's own tables the rival is the stronger of the two: {glue:text}`published_r_recovery:.2f` and
#   {glue:text}`published_r_clean_accuracy:.2f`. Of our two intervals,
#   {glue:text}`n_exclude` exclude zero; with the other held fixed they are {glue:text}`partial_recovery:.2f` and
#   {glue:text}`partial_clean_accuracy:.2f`. From
#   least to most fragile: {glue:text}`order_final`. The mean of ablated and rpt minus the mean of the three
#   encodings is {glue:text}`gap_final:.3f`.
# - **At equal accuracy** ({glue:text}`level:.2f`) the ranking is {glue:text}`order_matched`, the same gap is
#   {glue:text}`gap_matched:.3f` (published, of trained models: {glue:text}`published_gap:.3f`), and fragility correlates with anchoring at
#   r = {glue:text}`r_matched`. In {numref}`fig-rival` fragility grows with accuracy along most of
#   every path, so that comparing trained models as they are mixes how fragile a condition is with how
#   far it has got. Of the contrasts of A7 that point the other way at the end, ape - rope stays so,
#   {glue:text}`equal_ape_rope` (at the end {glue:text}`end_ape_rope`); rpt - spe becomes
#   {glue:text}`equal_rpt_spe`, and rpt - rope and spe - rope are not decided any more
#   ({glue:text}`equal_rpt_rope` and {glue:text}`equal_spe_rope`).
# - **Within conditions** the relation is not seen: r = {glue:text}`r_within` between runs of one condition, of
#   the other sign, and over so few runs compatible with none.
# - **A table turned down** makes a model less fragile, but also less accurate. Beside a snapshot of the same run at
#   the same accuracy its fragility differs by {glue:text}`turned_ape_0.4` at α = 0.4 for ape and by
#   {glue:text}`turned_spe_0.4` for spe: more fragile, not less. So the sign of A9 and A10 here may be one of
#   accuracy.
#
# ## Limits
#
# Five condition means carry one correlation with three degrees of freedom, whatever the number of
# seeds. Models matched on accuracy are matched at different steps of training: the least accurate at its
# last, with a learning rate that has gone to zero, the others on their way, at a high one, and between
# snapshots a factor of two apart. Anchoring and fragility are measured here on fewer images and orders than
# for the scoreboard, so that the same quantity differs in its last digits. The levels of α inside
# a model are left out of the correlations on purpose: they are the same weights many times. None of this shows a cause: the
# conditions differ in more than in how anchored they are. One rival is not tested at all: an additive table is
# large beside the patch tokens at the start, less so a sinusoidal one, and rope and ablated add none. After
# normalisation, what is added to a token dilutes any change of its content, stable frame or not; rpt, which has
# a table and no frame, could tell the two apart if it were as accurate as they are.

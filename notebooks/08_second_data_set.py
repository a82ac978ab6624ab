# %% [markdown]
# # The same on a second data set
#
# **Question.** Is what the last chapters show a matter of one data set? Here the same blocks, with the same
# optimiser, are trained on {glue:text}`data_name`: larger images of other things, cut into as many patches.
#
# The verdicts of A1 to A13 on these runs are a column of the [scoreboard](00_scoreboard.ipynb); this chapter
# shows the curves behind them.
#
# **Cost.** This chapter trains and measures nothing: it reads what the chapters on
# [trajectories](02_pe_trajectories.ipynb), [random permutation training](03_random_permutation_training.ipynb),
# [fragility](04_fragility.ipynb) and [α-scaling](05_alpha_scaling.ipynb) stored when they were run with this
# preset, after {glue:text}`hours:.1f` hours of training on one CPU thread.

# %% tags=["parameters"]
preset: str = "laptop_tiny"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds, as far as they are stored; 0 is the pilot
beside: str | None = "laptop"  # the preset to compare with, where it is stored
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/

# %%
from pe_utils.notebook import check_parameters

check_parameters(In)

# %%
import pandas as pd
from myst_nb import glue

from pe_utils import claims, plots, results
from pe_utils.config import CONDITIONS
from pe_utils.data import default_images, runs
from pe_utils.metrics import null_spread

# %%
conditions, found = ["ablated", "ape", "spe", "rope", "rpt"], {}
for name in dict.fromkeys([*([beside] if beside else []), preset]):
    configs = runs(name, CONDITIONS, seeds, data_root)
    images = [default_images(configs[0], kind, data_root) for kind in ("ssdc", "accuracy")]
    found[name] = claims.measured_tables(configs, *images)
ours, theirs = found[preset], claims.published_tables(results.published())
if ours.ssdc.empty or ours.fragility.empty or ours.alpha.empty:
    raise ValueError(
        f"{preset} is not measured; run chapters 02 to 05 with `-p preset {preset}` first"
    )
n_seeds = ours.fragility["seed"].nunique()

# %% [markdown]
# ## Structure

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC against relative depth (site attn_input), clean above, under RPI below; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Solid: ours, with 95 % bands from three seeds on; dashed: published, mean ± 1 sd over four seeds. Grey: what one random order shows by chance (± 2 sd).", "name": "fig-second-ssdc"}, "image": {"alt": "Ten small panels: SSDC over depth for ablated, ape, spe, rope and rpt, clean and under RPI, each with the published curve."}}
paper = results.published()["arxiv_2606_00124"]
published = {"none": paper["ssdc_clean"], "rpi": paper["ssdc_rpi"]}
plots.depth_curves(ours.ssdc, published, conditions, null_spread(configs[0].grid))

# %% [markdown]
# ## Fragility

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Fragility by condition under the two published corruptions; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Filled: ours; hollow: published, mean ± 1 sd over four seeds.", "name": "fig-second-fragility"}, "image": {"alt": "Two panels, JPEG and blur, with a dot per condition; published values hollow beside ours."}}
corruptions = ["jpeg_q5", "blur_s2.5_k5"]
plots.fragility_dots(ours.fragility, theirs.fragility, {n: n for n in corruptions})

# %% [markdown]
# All settings that were measured, also those scaled to the size of the image or matched to each other in the
# variance that they change, and what each changes:

# %%
settings = ["jpeg_q5", "jpeg_q10", "jpeg_q20", "jpeg_q40", "jpeg_v8"]
settings += ["blur_s2.5_k5", "blur_scaled", "blur_v8"]
absent = {c for name in settings
          for c in results.missing("fragility", configs, images=images[1], corruption=name)}  # fmt: skip
there = [c for c in configs if c not in absent]
all_settings = pd.concat(
    results.read("fragility", there, images=images[1], corruption=name) if there else ours.fragility
    for name in settings
)
changed = all_settings.groupby("corruption")["variance_changed"].mean() if there else {}
by_setting = all_settings.groupby(["corruption", "condition"])["fragility"].mean().unstack()
by_setting = by_setting.loc[settings if there else corruptions, conditions]
by_setting.assign(changed=pd.Series(changed, dtype=float)).round(3)

# %% [markdown]
# ## α-scaling

# %% tags=["hide-input"] mystnb={"figure": {"caption": "ΔSSDC and JPEG fragility as the table is scaled by α, both accuracies at that α; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Dashed: published (for spe a single seed, without a band). Measured here at three values of α, which the criteria compare.", "name": "fig-second-alpha"}, "image": {"alt": "Four panels: ΔSSDC above and JPEG fragility below, against α, for ape and spe."}}
plots.alpha_panels(ours.alpha, theirs.alpha)

# %% [markdown]
# Both fall with accuracy, shown beside them:

# %%
alphas = ours.alpha.groupby(["condition", "alpha"])
alphas[["delta_ssdc", "clean_accuracy", "fragility"]].mean().round(3)

# %% [markdown]
# ## Side by side
#
# Means over the seeds: accuracy, clean SSDC at the first depth and its change to the last, SSDC under RPI
# averaged over the depths after a block (recovery), its step from depth 0 to 1 (`delta_ssdc`), both fragilities.

# %%
sides = {}
for name, tables in {**found, "published": theirs}.items():
    curves = tables.ssdc.groupby(["intervention", "condition", "depth"])["ssdc"].mean().unstack()
    if len(curves):
        shifts = tables.fragility.groupby(["condition", "corruption"])["fragility"].mean().unstack()
        clean, rpi = curves.loc["none"], curves.loc["rpi"]
        side = {"accuracy": tables.fragility.groupby("condition")["clean_accuracy"].mean()}
        side |= {"clean_first": clean[0], "clean_rise": clean.iloc[:, -1] - clean[0]}
        side |= {"recovery": rpi.iloc[:, 1:].mean(axis=1), "delta_ssdc": rpi[1] - rpi[0]}
        sides[name] = pd.DataFrame(side).join(shifts[corruptions]).loc[conditions]
both = pd.concat({name: side.T for name, side in sides.items()}).swaplevel()
both.sort_index(level=0, sort_remaining=False).round(3)

# %% tags=["hide-cell"]
for name, side in sides.items():
    prefix = "" if name == preset else f"{name}_"
    for condition, row in side.iterrows():
        for column, value in row.items():
            glue(f"{prefix}{column}_{condition}", float(value), display=False)
    for column in corruptions:
        order = " < ".join(side[column].sort_values().index)
        glue(f"{prefix}order_{column}", order, display=False)

# %% tags=["hide-cell"]
judged = claims.scoreboard({preset: ours}, theirs).set_index(["claim", "check"])
asked = {"rope": ("A4", "rope - ablated"), "decay": ("A5", "ape, rpi: early - last"),
         "spe_rise": ("A5", "spe, rpi: early - first"), "jpeg_ape": ("A7", "ablated - ape"),
         "step": ("A2", "ablated, none: second - first"), "jpeg_rope": ("A7", "ape - rope"),
         "blur_rope": ("A8", "ape - rope"), "blur_ablated": ("A8", "ablated - rope"),
         "top": ("A13", "rope - spe")}  # fmt: skip
for key, row in asked.items():
    glue(f"judged_{key}", claims.interval_text(judged.loc[row]), display=False)
curves = ours.ssdc.groupby(["intervention", "condition", "depth"])["ssdc"].mean().unstack()
untrained, rope = curves.loc["none", "untrained_ablated"], curves.loc["rpi", "rope"]
glue("untrained_first", float(untrained[0]), display=False)
glue("untrained_last", float(untrained.iloc[-1]), display=False)
glue("rope_most", float(rope.max()), display=False)
glue("band", 2 * null_spread(configs[0].grid), display=False)

# %% tags=["hide-cell"]
for condition, rows in ours.alpha.groupby("condition"):
    for name in ("delta_ssdc", "clean_accuracy"):
        levels = rows.groupby("alpha")[name].mean().sort_index(ascending=False)
        text = ", ".join(f"{value:.2f}" for value in levels)
        glue(f"alpha_{name}_{condition}", text, display=False)
glue("alphas", ", ".join(f"{a:.1f}" for a in sorted(ours.alpha["alpha"].unique())[::-1]),
     display=False)  # fmt: skip
for name in ("jpeg_v8", "blur_scaled"):
    if there:
        order = " < ".join(by_setting.loc[name].sort_values().index)
        glue(f"order_{name}", order, display=False)
        glue(f"changed_{name}", float(changed[name]), display=False)
for name, side in sides.items():
    order = " > ".join(side["accuracy"].sort_values(ascending=False).index)
    glue(f"{'' if name == preset else name + '_'}order_accuracy", order, display=False)

# %% tags=["hide-cell"]
for name in found:
    stored = runs(name, CONDITIONS[1:], seeds, data_root)
    untold = results.missing("training", stored)
    if not (told := [config for config in stored if config not in untold]):
        continue
    training = results.read("training", told)
    prefix = "" if name == preset else f"{name}_"
    glue(f"{prefix}steps", f"{training['step'].max():,}", display=False)
    glue(f"{prefix}epochs", int(training["epoch"].max()), display=False)
    hours = float(training.groupby("run")["minutes"].max().sum() / 60)
    glue(f"{prefix}hours", hours, display=False)
glue("chance", 1 / configs[0].num_classes, display=False)
glue("n_seeds", n_seeds, display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-second-ssdc`, {numref}`fig-second-fragility`, {numref}`fig-second-alpha` and the tables are drawn
# from {download}`ssdc.csv <../../results/laptop_tiny/ssdc.csv>`,
# {download}`fragility.csv <../../results/laptop_tiny/fragility.csv>`,
# {download}`alpha_ssdc.csv <../../results/laptop_tiny/alpha_ssdc.csv>` and
# {download}`alpha.csv <../../results/laptop_tiny/alpha.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); brackets: 95 % intervals over them. Verdicts stand on the
# [scoreboard](00_scoreboard.ipynb).*
#
# - **Anchoring** appears here too in ape and spe. SSDC under RPI averages {glue:text}`recovery_ape:.2f` for ape
#   and {glue:text}`recovery_spe:.2f` for spe (on the first data set {glue:text}`laptop_recovery_ape:.2f` and
#   {glue:text}`laptop_recovery_spe:.2f`; published {glue:text}`published_recovery_ape:.2f` and
#   {glue:text}`published_recovery_spe:.2f`). Rope stands above ablated by {glue:text}`judged_rope`, but with
#   {glue:text}`rope_most:.3f` at most its curve stays inside the band of one random order,
#   ±{glue:text}`band:.3f`, which is the limit by which A3 and A6 say "no structure".
# - **Inject and decay (A5).** Under RPI ape goes on rising where the published curve decays: early minus last is
#   {glue:text}`judged_decay`. The rise of spe across the first block is {glue:text}`judged_spe_rise`.
# - **Without positions** the untrained model starts at {glue:text}`untrained_first:.2f` and is flat
#   ({glue:text}`untrained_last:.2f` at the last depth). After training the clean curve starts at
#   {glue:text}`clean_first_ablated:.2f` ({glue:text}`laptop_clean_first_ablated:.2f` on the first data set,
#   {glue:text}`published_clean_first_ablated:.2f` published); the step across the first block is
#   {glue:text}`judged_step`: the early rise of A2 is not seen.
# - **Fragility.** From least to most fragile, by the means, under JPEG: {glue:text}`order_jpeg_q5` here,
#   {glue:text}`laptop_order_jpeg_q5` on the first data set, {glue:text}`published_order_jpeg_q5` published;
#   under blur {glue:text}`order_blur_s2.5_k5` here, {glue:text}`laptop_order_blur_s2.5_k5` there and
#   {glue:text}`published_order_blur_s2.5_k5` published. Under JPEG ablated minus ape is
#   {glue:text}`judged_jpeg_ape` and ape minus rope {glue:text}`judged_jpeg_rope`; under blur ablated minus rope
#   {glue:text}`judged_blur_ablated` and ape minus rope {glue:text}`judged_blur_rope`. Scaled to the image, blur
#   changes {glue:text}`changed_blur_scaled:.0%` of the variance and gives {glue:text}`order_blur_scaled`; JPEG
#   matched to {glue:text}`changed_jpeg_v8:.0%` gives {glue:text}`order_jpeg_v8`.
# - **α.** At α = {glue:text}`alphas` ΔSSDC of ape is {glue:text}`alpha_delta_ssdc_ape`. Clean accuracy falls
#   with it ({glue:text}`alpha_clean_accuracy_ape` for ape, {glue:text}`alpha_clean_accuracy_spe` for spe, chance
#   {glue:text}`chance:.2f`), so that fragility at the lowest α means little.
# - **Accuracy** orders the models {glue:text}`order_accuracy` here, {glue:text}`published_order_accuracy` in the
#   paper; rope minus spe is {glue:text}`judged_top`. Levels do not compare: other classes, other chance.
#
# ## Limits
#
# Images, classes, patch size and number of steps ({glue:text}`steps`, against {glue:text}`laptop_steps` on the
# first data set) differ at once, so that where the two data sets disagree none of them can be named as the
# reason. The number of epochs, {glue:text}`epochs`, stands in the preset without a pilot of its own. Fewer
# seeds, training images and test images make wider intervals. Severities are those of the paper in pixels: a
# block of JPEG is as large as a patch here, four patches on the first data set and a quarter of a patch in the
# paper, so that fragilities of different data sets do not compare, only orders. These images, too, were JPEG at
# the size that the model sees before they came to us.

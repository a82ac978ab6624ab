# %% [markdown]
# # Structure without positions
#
# **Question.** A Vision Transformer without positional encodings cannot tell where a patch stands.
# Are neighbouring patches represented alike all the same, and what does training add?
#
# **Claims held against the evidence** {cite}`mannes2026`: at initialisation the ablated model
# already shows high, nearly flat SSDC (A1); training without positional encodings yields a sharp
# early rise (A2).
#
# **Cost.** From the committed results: seconds. From nothing, at preset `laptop`: seconds per run
# after training, which took up to {glue:text}`minutes:.0f` minutes per run on one CPU thread.

# %% tags=["parameters"]
preset: str = "laptop"  # which runs: smoke, laptop, laptop_tiny or own (a folder: data_root)
seeds: list[int] = [1, 2, 3, 4]  # training seeds; 0 is the pilot
data_root: str | None = None  # folder of the data sets; None: the variable PE_DATA, else data/
n_images: int | None = None  # test images for SSDC; None: the preset's number

# %%
from pe_utils.notebook import check_parameters

check_parameters(In)

# %%
from myst_nb import glue

from pe_utils import plots, results
from pe_utils.data import default_images, load, runs
from pe_utils.evaluate import ssdc_by_depth
from pe_utils.metrics import null_spread
from pe_utils.train import load_model, trained_model

# %%
conditions = ["untrained_ablated", "ablated"]
configs = runs(preset, conditions, seeds, data_root)
n_images = default_images(configs[0], "ssdc", data_root) if n_images is None else n_images
clean = {"images": n_images, "intervention": "none", "orders": 0, "order_seed": 0}

# %% [markdown]
# ## Measurement
#
# The loop runs over what the results lack and trains a model that does not exist yet. One pass
# over the test images averages the cosine similarity of all pairs of patch tokens at every depth;
# SSDC is its rank correlation with closeness on the patch grid.

# %% tags=["hide-input"]
for config in results.missing("ssdc", configs, **clean):
    data = load(config.dataset, config.image_size, data_root)
    images = data.test.first(n_images).images
    model = trained_model(config, data)
    results.add("ssdc", config, ssdc_by_depth(model, images), **clean)

# %% [markdown]
# The same by hand, now, on the stored model and photographs that it never saw. They are another kind of
# image than those of the result below: compare the shape over depth, not the level.

# %%
config = runs(preset, ["ablated"], seeds, data_root)[0]
photos = load("photos", config.image_size)
live = ssdc_by_depth(load_model(config), photos.test.images)
live.pivot(index="site", columns="depth", values="ssdc").round(3)

# %% [markdown]
# ## Result

# %%
ssdc = results.read("ssdc", configs, **clean)
at_input = ssdc[ssdc["site"] == "attn_input"]
published = {"none": results.published()["arxiv_2606_00124"]["ssdc_clean"]}

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC of clean images against relative depth (site attn_input) before and after training without positional encodings; n = {glue:text}`n_seeds` training seed(s), {glue:text}`data_name`. Solid: ours; dashed: published (ImageNet-100, ViT-S), mean ± 1 sd over four seeds.", "name": "fig-emergence"}, "image": {"alt": "Two panels of SSDC over relative depth, untrained and trained without positional encodings, each with the published curve."}}
plots.depth_curves(at_input, published, conditions, null_spread(configs[0].grid))

# %%
table = at_input.groupby(["condition", "depth"])["ssdc"].mean().unstack("depth").loc[conditions]
table.round(3)

# %% tags=["hide-cell"]
training = results.read("training", [config for config in configs if config.epochs])
glue("minutes", float(training["minutes"].max()), display=False)
glue("hours", float(training.groupby("run")["minutes"].max().sum() / 60), display=False)
theirs = published["none"]["untrained_ablated"]["mean"]
glue("published_untrained", sum(theirs) / len(theirs), display=False)
for name in conditions:
    curve = published["none"][name]["mean"]
    ends = {"first": curve[0], "last": curve[-1], "step": curve[1] - curve[0]}
    for end, value in (ends | {"rise": curve[-1] - curve[0]}).items():
        glue(f"published_{name}_{end}", float(value), display=False)

# %% tags=["hide-cell"]
paper = {name: published["none"][name]["mean"] for name in conditions}
for place, depth in {"second": 1, "last": -1}.items():
    ours = table.loc["ablated"].iloc[depth] - table.loc["untrained_ablated"].iloc[depth]
    glue(f"trained_{place}", float(ours), display=False)
    theirs = paper["ablated"][depth] - paper["untrained_ablated"][depth]
    glue(f"published_trained_{place}", float(theirs), display=False)
for name, curve in table.iterrows():
    glue(f"{name}_first", float(curve.iloc[0]), display=False)
    glue(f"{name}_second", float(curve.iloc[1]), display=False)
    glue(f"{name}_last", float(curve.iloc[-1]), display=False)
    glue(f"{name}_mean", float(curve.mean()), display=False)
    glue(f"{name}_step", float(curve.iloc[1] - curve.iloc[0]), display=False)
    glue(f"{name}_rise", float(curve.iloc[-1] - curve.iloc[0]), display=False)
glue("n_seeds", len(seeds), display=False)
glue("data_name", configs[0].dataset, display=False)

# %% [markdown]
# {numref}`fig-emergence` and the table are drawn from
# {download}`ssdc.csv <../../results/laptop/ssdc.csv>`.
#
# ## What we saw
#
# *n = {glue:text}`n_seeds` training seed(s); means over the seeds. Verdicts with their
# intervals stand on the [scoreboard](00_scoreboard.ipynb).*
#
# - **A1, at initialisation.** SSDC is {glue:text}`untrained_ablated_first:.2f` at the first depth
#   and {glue:text}`untrained_ablated_last:.2f` at the last, {glue:text}`untrained_ablated_mean:.2f`
#   on average (published: {glue:text}`published_untrained_ablated_first:.2f`,
#   {glue:text}`published_untrained_ablated_last:.2f`, {glue:text}`published_untrained:.2f`). A random convolution maps similar patches to similar tokens, and neighbouring
#   patches of photographs are similar: this much needs no training and no positions.
# - **A2, after training.** From depth 0 to 1 SSDC changes by {glue:text}`ablated_step:.3f`
#   (untrained: {glue:text}`untrained_ablated_step:.3f`), over the whole depth by
#   {glue:text}`ablated_rise:.3f` (untrained: {glue:text}`untrained_ablated_rise:.3f`). Published, trained:
#   {glue:text}`published_ablated_step:.3f` and {glue:text}`published_ablated_rise:.3f`. The rise starts from
#   a lower point than the untrained model's: at depth 0, training changes SSDC from
#   {glue:text}`untrained_ablated_first:.3f` to {glue:text}`ablated_first:.3f` (published: from
#   {glue:text}`published_untrained_ablated_first:.3f` to {glue:text}`published_ablated_first:.3f`). So where the blocks begin
#   training takes structure away, and trained minus untrained is {glue:text}`trained_second:.3f` at depth 1
#   and {glue:text}`trained_last:.3f` at the last (published: {glue:text}`published_trained_second:.3f` and
#   {glue:text}`published_trained_last:.3f`). How much of
#   the first step depends on the mean patch is told in [what SSDC measures](10_what_ssdc_measures.ipynb).
#
# ## Limits
#
# SSDC here is of the similarity averaged over images; the mean of every single image's SSDC is
# another number. Without positions nothing can separate a layer that looks at neighbours
# from one that looks at similar patches: the next chapter does, by taking content and index apart.

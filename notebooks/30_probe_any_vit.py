# %% [markdown]
# # Probe any Vision Transformer
#
# **Question.** What do the measurements of this book say about other people's models?
#
# Everything here runs on any plain timm {cite}`wightman2019` Vision Transformer: SSDC in place and under
# {term}`RPI`, attention per head, scaling of whatever positions the model has, each under its own name,
# and fragility where images and labels are given. Weights are *random* unless you ask for others, as in
# timm, and every output says which.
#
# With a network, the same with pretrained weights and your own images:
#
# ```sh
# papermill book/chapters/30_probe_any_vit.ipynb out.ipynb \
#   -y '{models: [vit_small_patch16_dinov3, deit3_small_patch16_224], pretrained: true, images: DIR}'
# ```
#
# How to do it in five lines, or from the command line, is on the page
# [Probe your own model](../probe_your_own.md).
#
# **Cost.** Nothing is stored. The time is in proportion to the number of images, of orders and of kinds of
# positions.

# %% tags=["parameters"]
preset: str = "laptop"  # whose trained models are probed first: smoke, laptop, laptop_tiny or own
seed: int = 1  # their training seed
data_root: str | None = None  # folder of their data set; None: the variable PE_DATA, else data/
models: list[str] = ["vit_tiny_patch16_224", "vit_small_patch16_rope_224"]  # timm's names
pretrained: bool = False  # timm's weights from the Hugging Face hub; else random ones
checkpoint: str | None = None  # a local safetensors or torch file instead, for a single model
images: str = "photos"  # a folder of images, one of our data sets, or the embedded photographs
n_images: int = 4  # number of images, at most
n_orders: int = 4  # random orders that SSDC under RPI is averaged over
order_seed: int = 0  # seed of these orders

# %%
from pe_utils.notebook import check_parameters

check_parameters(In)

# %%
import pandas as pd
from myst_nb import glue

from pe_utils.data import load, runs
from pe_utils.probe import figures, joined, measured, open_model, read_images
from pe_utils.selftest import refused, supported, verify
from pe_utils.train import finished, load_model, trained_model

# %%
if checkpoint is not None and len(models) > 1:
    raise ValueError(f"checkpoint takes one model, not {models}")
opened = {name: open_model(name, pretrained, checkpoint) for name in models}
for model, _ in opened.values():
    verify(model)
seen = {name: read_images(images, model, n_images) for name, (model, _) in opened.items()}

# %% [markdown]
# ## Trained models first: our own
#
# The committed models of the first part are models like any other. They are probed here on photographs
# that they never saw:

# %%
own = []
for config in runs(preset, ["ablated", "ape", "rope"], [seed], data_root):
    if finished(config):
        model = load_model(config)
    else:
        model = trained_model(config, load(config.dataset, config.image_size, data_root))
    photos = load("photos", config.image_size).test.first(60).images
    own.append(measured(model, config.condition, config.run_id, photos, None, n_orders, order_seed))
own = joined(own)
own_figures = figures(own, n_orders)

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC (site attn_input) of three models of this book on sixty photographs, in place and under RPI (mean of {glue:text}`n_orders` orders). Grey: two standard deviations of that mean by chance.", "name": "fig-probe-own"}, "image": {"alt": "Two panels, SSDC against relative depth for ablated, ape and rope, clean and under RPI."}}
own_figures["ssdc"]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The same models: structure under RPI when their positions are scaled at inference. ablated has none to scale.", "name": "fig-probe-own-scaling"}, "image": {"alt": "Two panels, delta SSDC and mean SSDC under RPI against the factor on the positions, for ape (table) and rope (rotary)."}}
own_figures["scaling"]

# %% [markdown]
# ## timm's models
#
# Each is first put through the self-test: permuting its tokens must be the same as permuting the patches of
# the image, without positions their order must not matter, and measuring must not change a bit of the
# output.

# %%
found, said = [], {}
for name, (model, weights) in opened.items():
    pictures, labels, what = seen[name]
    found.append(measured(model, name, weights, pictures, labels, n_orders, order_seed))
    said[name] = {"weights": weights, "images": what}
tables = joined(found)
drawn = figures(tables, n_orders)
pd.set_option("display.max_colwidth", None)  # sentences are shown whole
pd.DataFrame(said).T

# %% tags=["hide-input"] mystnb={"figure": {"caption": "SSDC (site attn_input) of the models asked for, in place and under RPI. Grey: two standard deviations, by chance, of the mean of {glue:text}`n_orders` orders. The table above says which weights they have.", "name": "fig-probe"}, "image": {"alt": "Two panels, SSDC against relative depth, clean and under RPI, a line per model."}}
drawn["ssdc"]

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Every head at its mean attention distance and entropy; colour is depth, the cross is uniform attention. Heads of random weights attend almost uniformly.", "name": "fig-probe-heads"}, "image": {"alt": "A panel per model: normalised entropy against mean attention distance, a point per head."}}
drawn["attention"]

# %%
tables["scaling"].set_index(["model", "kind", "factor"]).drop(columns=["weights", "grid"]).round(4)

# %% [markdown]
# Fragility, where the images' classes are the model's:

# %%
tables["fragility"] if len(tables["fragility"]) else "No labels that match: " + "; ".join(
    f"{name}: {facts['images']}" for name, facts in said.items()
)

# %% [markdown]
# ## Which models can be probed
#
# Verified now: one model of each family, made small, with weights drawn large enough for positions to
# matter, passed the self-test while this page was made.

# %% tags=["hide-input"]
verified = supported()
verified

# %% [markdown]
# Refused, with the reason:

# %% tags=["hide-input"]
others = refused()
others

# %% tags=["hide-cell"]
glue("n_verified", len(verified), display=False)
glue("n_refused", len(others), display=False)
glue("n_orders", n_orders, display=False)

# %% [markdown]
# {glue:text}`n_verified` families are supported; a model of any other class is put through the same test
# and then either measured or refused.
#
# ## The authors' checkpoints
#
# The trained models of {cite:t}`mannes2026` can be downloaded (their repository says where). With one of
# them, and ImageNet-100 as a folder with a subfolder per class, the paper's curves come out without any training:
#
# ```sh
# python -m pe_utils.probe mannes2026 --checkpoint APE1_imagenet_100_60 \
#   --images imagenet-100/val --n-images 1000 --orders 64 --out ape1
# ```
#
# The file keeps its published name, which tells the condition. Their layout was re-stated in a test, and
# models read from it give the outputs of the published forward pass; the files themselves were never
# tried here. Expect SSDC as in the dashed curves of
# [the chapter on trajectories](02_pe_trajectories.ipynb), with the scatter of one order less.
#
# ## Limits
#
# A model with random weights tells about an architecture and its initialisation, not about what training
# makes of them. Distances are those of a model's own grid: compare models of equal grids.

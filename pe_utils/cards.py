"""Model cards of the committed weights: `python -m pe_utils.cards` writes them all.

`weights/<preset>/README.md` is made from the preset's manifest and tables alone.
"""

import json

import pandas as pd

from pe_utils import results
from pe_utils.config import IMAGES, PRESETS, home, preset_config
from pe_utils.storage import write_atomically

HEAD = """# Weights of preset `{preset}`

Small Vision Transformers trained for this project, one safetensors file (float16) per run, with the
run's config, data digest and code version inside. A run loads in one line:

```python
from pe_utils.config import preset_config
from pe_utils.train import load_model

model = load_model(preset_config("{preset}", "{condition}", seed={seed}{changes}))
```

- Architecture: timm `Eva`, {height} x {width} pixels, patch {patch_size}, D {embed_dim},
  {depth} blocks, {num_heads} heads, {num_classes} classes
- Data: `{data}`, digest `{digest}`; the images have terms of their own
- Made for measuring spatial structure, not for use as classifiers
- Licence: MIT, as the code
- What was measured on them: `results/{preset}`

Held-out accuracy is that of the last epoch on held-out training images, test accuracy that of these
float16 weights on the test images (–: not measured). *Differs* lists what a run's config does not
share with the preset.

"""


def card(preset: str) -> str:
    """The Markdown text.

    Raises: ValueError: the preset has no results.
    """
    manifest = results.manifest(preset)
    if not manifest["runs"]:
        raise ValueError(f"{results.folder(preset)} has no results to make a card of")
    rows = pd.DataFrame([_row(preset, run_id, run) for run_id, run in manifest["runs"].items()])
    rows = rows.sort_values(["condition", "seed", "run"], kind="stable", key=results.in_order)
    usual = preset_config(preset, "ape", 0)
    facts = {name: getattr(usual, name) for name in
             ("patch_size", "embed_dim", "depth", "num_heads", "num_classes")}  # fmt: skip
    own = _changes(preset, manifest["runs"][rows.iloc[0]["run"]]["config"])
    changes = "".join(f", {name}={json.dumps(value)}" for name, value in own.items())
    head = HEAD.format(preset=preset, changes=changes,
                       height=usual.image_size[0], width=usual.image_size[1],
                       data=manifest["data"]["name"], digest=manifest["data"]["digest"],
                       **rows.iloc[0][["condition", "seed"]], **facts)  # fmt: skip
    lines = [rows.columns, ["---"] * rows.shape[1], *rows.astype(str).to_numpy()]
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _changes(preset: str, config: dict) -> dict:
    """The fields of a run's config that its preset has otherwise."""
    usual = preset_config(preset, config["condition"], config["seed"])
    kept = {k: v for k, v in config.items() if k != "preset" and hasattr(usual, k)}
    return {k: v for k, v in kept.items() if v != _plain(getattr(usual, k))}


def _row(preset: str, run_id: str, run: dict) -> dict:
    config = run["config"]
    own = _changes(preset, config)
    table = results.folder(preset) / "accuracy.csv"
    known = pd.read_csv(table).set_index(["run", "images"])["accuracy"] if table.exists() else {}
    test = known.get((run_id, IMAGES[preset]["accuracy"]))
    held_out = run["held_out_accuracy"]
    return {"run": run_id, "condition": config["condition"], "seed": config["seed"],
            "differs": ", ".join(f"{k} {v}" for k, v in own.items()) or "–",
            "held-out accuracy": f"{float(held_out):.3f}" if held_out else "–",
            "test accuracy": "–" if test is None else f"{test:.4f}",
            "code": run["code"], "sha256 of the tensors": run["sha256"][:16]}  # fmt: skip


def _plain(value: object) -> object:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def main() -> None:
    for preset in PRESETS:
        if results.manifest(preset)["runs"]:
            text = card(preset)
            path = home() / "weights" / preset / "README.md"
            write_atomically(path, text)


if __name__ == "__main__":
    main()

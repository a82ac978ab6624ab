"""Measure a chapter again from the committed weights, and compare with the committed tables.

`python -m pe_utils.remeasure 04_fragility -y '{seeds: [1], corruptions: [jpeg_q5]}'` executes the
chapter in an empty home that holds only the weights and the training log, and says how far each
number lies from the stored one. Nothing stored is changed.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
import pandas as pd
import papermill
import yaml

from pe_utils.config import ROOT, home

PRINTED = 5e-4  # half of the last printed digit
SETTINGS = {"alpha", "factor"}  # the floats that say what was measured; other floats are results
NOT = ("00", "06", "08", "11", "12", "30")  # measure nothing, or snapshots


def differences(new: pd.DataFrame, stored: pd.DataFrame) -> pd.Series:
    """Each new row's largest difference from the stored row of the same run and settings.

    Infinite where there is no such row.
    """
    floats = [c for c in new.columns if pd.api.types.is_float_dtype(new[c]) and c not in SETTINGS]
    keys = [c for c in new.columns if c not in floats]
    both = new.merge(stored, on=keys, how="left", suffixes=("", "_stored"), validate="one_to_one")
    gaps = [(both[c] - both[f"{c}_stored"]).abs() for c in floats]
    return pd.concat(gaps, axis=1).max(axis=1, skipna=False).fillna(float("inf"))


def remeasure(chapter: str, parameters: dict, fresh: Path) -> dict[str, pd.Series]:
    """Execute the chapter with the home `fresh`; table name to `differences`.

    Raises: papermill.PapermillExecutionError: a cell failed.
    """
    preset = parameters.get("preset", "laptop")
    stored = home() / "results" / preset
    shutil.copytree(home() / "weights" / preset, fresh / "weights" / preset)
    (fresh / "results" / preset).mkdir(parents=True)
    shutil.copy(stored / "training.csv", fresh / "results" / preset)
    data = os.environ.get("PE_DATA", str(home() / "data"))
    source = jupytext.read(ROOT / "notebooks" / f"{chapter}.py")
    kept = dict(os.environ)
    os.environ |= {"PE_HOME": str(fresh), "PE_DATA": data}
    try:
        papermill.execute_notebook(source, None, parameters, cwd=str(ROOT / "notebooks"),
                                   kernel_name="python3", language="python",
                                   progress_bar=False, stderr_file=sys.stderr)  # fmt: skip
    finally:
        os.environ.clear()
        os.environ |= kept
    tables = sorted((fresh / "results" / preset).glob("*.csv"))
    return {path.stem: differences(pd.read_csv(path), pd.read_csv(stored / path.name))
            for path in tables if path.stem != "training"}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pe_utils.remeasure", description=__doc__)
    names = sorted(p.stem for p in ROOT.glob("notebooks/*.py") if not p.stem.startswith(NOT))
    parser.add_argument("chapter", choices=names)
    parser.add_argument("-y", default="{}", metavar="YAML", help="parameters, as with papermill")
    options = parser.parse_args()
    parameters = yaml.safe_load(options.y)
    weights = home() / "weights" / parameters.get("preset", "laptop")
    if not weights.is_dir():
        parser.error(f"there are no weights to measure again: {weights} is no folder")
    with tempfile.TemporaryDirectory() as fresh:
        found = remeasure(options.chapter, parameters, Path(fresh))
    for table, gaps in found.items():
        print(f"{table}.csv: {len(gaps)} rows, {(gaps == 0).sum()} equal to the last bit, "
              f"largest difference {gaps.max():.1e}")  # fmt: skip
    return int(not found or any(gaps.max() > PRINTED for gaps in found.values()))


if __name__ == "__main__":
    sys.exit(main())

"""Tidy result tables and their manifest: `results/<preset>/<table>.csv`, written atomically.

A row belongs to one run (`run`, `condition`, `init`, `protocol`, `seed`) and to the settings it was
measured with (number of images, orders, ...), which are columns too: rows of other settings never
mix.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pandas as pd
from safetensors import SafetensorError, safe_open

from pe_utils.config import CONDITIONS, EXTENSIONS, PROTOCOLS, RunConfig, home
from pe_utils.storage import alone, write_atomically

RESTORE = "put the old weights back (git checkout), or remove the file to train again"
RUN_COLUMNS = ["run", "condition", "init", "protocol", "seed"]


def folder(preset: str) -> Path:
    return home() / "results" / preset


def missing(table: str, configs: Sequence[RunConfig], **settings: object) -> list[RunConfig]:
    """The runs that have no row of these settings in the table yet.

    Raises: ValueError: runs of more than one preset, whose tables are different files.
    """
    if len(presets := {config.preset for config in configs}) > 1:
        raise ValueError(f"runs of one preset at a time, not of {sorted(presets)}")
    done = set(_select(_read(table, configs[0].preset), settings)["run"]) if configs else set()
    return [config for config in configs if config.run_id not in done]


def read(table: str, configs: Sequence[RunConfig], **settings: object) -> pd.DataFrame:
    """The rows of these runs and settings.

    Raises: ValueError: a run has none; names the first.
    """
    if absent := missing(table, configs, **settings):
        raise ValueError(f"{table}.csv has no row of {absent[0].run_id} with {settings}")
    rows = _select(_read(table, configs[0].preset), settings)
    return rows[rows["run"].isin([c.run_id for c in configs])].reset_index(drop=True)


def add(table: str, config: RunConfig, rows: list[dict] | pd.DataFrame, **settings: object) -> None:
    """Store the rows of one run, in place of its earlier rows of the same settings.

    The run's weights must exist; the manifest gets their record and the code's version.

    Raises:
        ValueError: no rows, a value is missing or not finite, the columns differ from the
            table's, or the run's earlier rows, or the preset's, stand on other weights or data.
        FileNotFoundError: the run has no weights.
    """
    new = pd.DataFrame(rows)
    if new.empty:
        raise ValueError(f"{table}, {config.run_id}: there are no rows to store")
    bad = new.isna() | new.isin([float("inf"), -float("inf")])
    if bad.any(axis=None):
        names = ", ".join(map(str, new.columns[bad.any()]))
        raise ValueError(f"{table}, {config.run_id}: a value is missing or infinite in {names}")
    run = {"run": config.run_id} | {name: getattr(config, name) for name in RUN_COLUMNS[1:]}
    new = pd.concat([pd.DataFrame(run | settings, index=new.index), new], axis=1)
    with alone(home() / "runs" / config.preset / "results.lock"):
        old = _read(table, config.preset)
        if len(old.columns) and list(old.columns) != list(new.columns):
            raise ValueError(
                f"{table}.csv has columns {list(old.columns)}, not {list(new.columns)}"
            )
        updated = _updated_manifest(table, config)
        same = _select(old, {"run": config.run_id} | settings).index
        kept = [frame for frame in (old.drop(index=same), new) if len(frame)]
        merged = pd.concat(kept).sort_values(
            ["seed", "condition", "init", "protocol", *settings], kind="stable", key=in_order
        )
        _store(table, config.preset, merged, updated)


def published() -> dict:
    """The published tables and curves (arXiv:2606.00124 and 2605.16390), as read off the papers."""
    return json.loads(files("pe_utils").joinpath("published_values.json").read_text())


@cache
def code_version() -> str:
    """The commit of the code, `-dirty` where `pe_utils` has uncommitted changes."""
    source = Path(__file__).resolve().parent
    git = ["git", "-C", str(source)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True,
                                capture_output=True, text=True).stdout.strip()  # fmt: skip
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], check=True,
                                 capture_output=True, text=True).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return f"version {version('pe_utils')}"
    return f"{commit}-dirty" if changed.strip() else commit


def _store(table: str, preset: str, rows: pd.DataFrame, updated: dict) -> None:
    """Table and manifest; a kill between the writes leaves a manifest that accepts either table."""
    path, text = folder(preset) / f"{table}.csv", rows.to_csv(index=False, lineterminator="\n")
    sums, old = updated.setdefault("tables", {}), _sha256(path)
    new = hashlib.sha256(text.encode()).hexdigest()
    for step in ([old, new], None, [new]):
        if step is None:
            write_atomically(path, text)
            continue
        sums[table] = step
        record = json.dumps(updated, indent=1, sort_keys=True) + "\n"
        write_atomically(folder(preset) / "manifest.json", record)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _read(table: str, preset: str) -> pd.DataFrame:
    path = folder(preset) / f"{table}.csv"
    if not path.exists():
        return pd.DataFrame(columns=[])
    accepted = manifest(preset).get("tables", {}).get(table)
    if accepted is not None and _sha256(path) not in accepted:
        raise ValueError(
            f"{path} is not as it was written: damaged or edited; restore it (git checkout), or "
            "remove it to measure again"
        )
    return pd.read_csv(path)  # exact since pandas 3: rows are rewritten and no bit may move


def _select(rows: pd.DataFrame, settings: dict[str, object]) -> pd.DataFrame:
    if not len(rows):
        return pd.DataFrame({"run": []})
    for name, value in settings.items():
        rows = rows[rows[name] == value]
    return rows


def in_order(column: pd.Series) -> pd.Series:
    """Sort key of a table's columns: conditions and protocols in their usual order."""
    orders = {"condition": (*CONDITIONS, *EXTENSIONS), "protocol": tuple(PROTOCOLS)}
    return column.map(orders[column.name].index) if column.name in orders else column


def check_data(preset: str, name: str, digest: str) -> None:
    """Refuse other data than those the preset's results stand on.

    Raises: ValueError: names both.
    """
    known = manifest(preset).get("data", {"digest": digest})
    if known["digest"] != digest:
        raise ValueError(
            f"results/{preset} stands on {known['name']} {known['digest']}, but these data are "
            f"{name} {digest}; set PE_HOME to another folder for them"
        )


def manifest(preset: str) -> dict:
    """Where the preset's results come from: data, by run its record, by table its checksum.

    Raises: ValueError: it is damaged.
    """
    path = folder(preset) / "manifest.json"
    if not path.exists():
        return {"preset": preset, "runs": {}}
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); restore it (git checkout)") from error


def _updated_manifest(table: str, config: RunConfig) -> dict:
    found, record = manifest(config.preset), weights_record(config)
    data = {"name": record.pop("data"), "digest": record.pop("digest"),
            "classes": record.pop("classes").split("\n")}  # fmt: skip
    check_data(config.preset, data["name"], data["digest"])
    found.setdefault("data", data)
    check_weights(config, record)
    known = found["runs"].get(config.run_id, record)
    measured = known.get("measured", {})
    measured[table] = {"code": code_version(), "python": platform.python_version(),
                       "torch": version("torch"), "timm": version("timm")}  # fmt: skip
    found["runs"][config.run_id] = record | {"measured": measured}
    return found


def weights_record(config: RunConfig) -> dict:
    """What the weights file says of its run (config, data, code ...), and its tensors' checksum.

    Raises:
        FileNotFoundError: the run is not finished.
        ValueError: the file is damaged: it cannot be read, or its tensors are not those that the
            run's results stand on.
    """
    path = config.weights_path
    if not path.exists():
        raise FileNotFoundError(
            f"no weights of {config.run_id}: train it first ({path} is missing)"
        )
    try:
        with safe_open(path, "np") as file:
            record = dict(file.metadata())
        record["config"] = json.loads(record["config"])
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); {RESTORE}") from error
    content = path.read_bytes()
    tensors = content[8 + int.from_bytes(content[:8], "little") :]  # without the header's metadata
    return record | {"sha256": hashlib.sha256(tensors).hexdigest()}


def check_weights(config: RunConfig, record: dict) -> None:
    """Refuse weights that are not those the run's results stand on.

    Raises: ValueError: names the file and both checksums.
    """
    known = manifest(config.preset)["runs"].get(config.run_id, record)
    if known["sha256"] != record["sha256"]:
        raise ValueError(
            f"the rows of {config.run_id} stand on weights {known['sha256'][:8]}, but "
            f"{config.weights_path} is {record['sha256'][:8]}; {RESTORE}, or remove this run's "
            "rows and its entry in manifest.json"
        )

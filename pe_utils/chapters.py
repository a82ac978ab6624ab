"""Execute `notebooks/*.py` and write `book/chapters/*.ipynb`, byte-identical for equal results.

`python -m pe_utils.chapters` runs every chapter, `python -m pe_utils.chapters 04_fragility` one.
There are no parameters here on purpose, so that what is committed always shows the defaults; for
another run use papermill: `papermill book/chapters/04_fragility.ipynb out.ipynb -p preset smoke`.
"""

import argparse
import difflib
import hashlib
import os
import re
import sys
import tempfile
import time
import tomllib
from itertools import count
from pathlib import Path

import jupytext
import nbformat
import papermill
from nbformat import NotebookNode

from pe_utils.config import home

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "notebooks"
CHAPTERS = ROOT / "book" / "chapters"
KEPT_CELL_METADATA = ("tags", "mystnb")
VOLATILE = (
    (re.compile(r" at 0x[0-9a-fA-F]+"), " at 0x0"),
    (re.compile(r"[^\s'\"]*ipykernel_\d+[/\\]\d+\.py"), "<cell>"),
    (re.compile(re.escape(tempfile.gettempdir()) + r"[/\\][^\s'\"<>),;:]+"), "<temporary>"),
    (re.compile(re.escape(str(ROOT)) + r"[/\\]"), ""),
)
STYLER_ID = re.compile(r"\bT_[0-9a-f]{5}(?=[_\"\s])")  # pandas draws one for each styled table


def run_chapter(source: Path, target: Path) -> None:
    """Execute a percent script from top to bottom and write the cleaned notebook.

    The target is replaced in one step and only when every cell passed.

    Args:
        source: the script; its folder is the kernel's working directory.
        target: the notebook to write.

    Raises:
        papermill.PapermillExecutionError: a cell failed; the notebook as far as it came stays in
            `failed_path(source)` and the target is untouched.
    """
    attempt = failed_path(source)
    attempt.parent.mkdir(parents=True, exist_ok=True)
    notebook = papermill.execute_notebook(
        jupytext.read(source),
        str(attempt),
        cwd=str(source.parent),
        kernel_name="python3",
        language="python",
        progress_bar=False,
        record_timing=False,
        stdout_file=sys.stdout,
        stderr_file=sys.stderr,  # the progress of a training run: to be seen now, not kept
    )
    write_text(target, render(clean(notebook)))
    attempt.unlink()


def failed_path(source: Path) -> Path:
    """Where a failed run of `source` is kept, to be opened in JupyterLab."""
    return home() / "runs" / "chapters" / f"{source.stem}.ipynb"


def clean(notebook: NotebookNode) -> NotebookNode:
    """Drop, in place, all that differs between two runs with equal results."""
    notebook.metadata = nbformat.from_dict(_notebook_metadata())
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    rewrite = _rewriter()
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        kept = {k: cell.metadata[k] for k in KEPT_CELL_METADATA if cell.metadata.get(k)}
        cell.metadata = nbformat.from_dict(kept)
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        if cell.cell_type == "code":
            cell.outputs = _clean_outputs(cell.outputs, rewrite)
    return notebook


def _notebook_metadata() -> dict:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    filters = settings["tool"]["jupytext"]
    return {
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
        # what `jupytext --sync` would write, so that pairing changes nothing
        "jupytext": {k: v for k, v in filters.items() if k.endswith("_metadata_filter")},
    }


def _clean_outputs(outputs: list[NotebookNode], rewrite) -> list[NotebookNode]:
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            output.text = rewrite(output.text)
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        for mime, value in output.get("data", {}).items():
            # a glued value that is not displayed has a prefix before its text/...
            if isinstance(value, str) and "text/" in mime:
                output.data[mime] = rewrite(value)
        kept.append(output)
    return kept


def _rewriter():
    """A function on text that replaces addresses, machine paths and drawn table ids."""
    styled: dict[str, str] = {}
    numbers = count()

    def rewrite(text: str) -> str:
        for pattern, replacement in VOLATILE:
            text = pattern.sub(replacement, text)
        return STYLER_ID.sub(
            lambda m: styled.setdefault(m[0], "") or styled.update({m[0]: f"T_{next(numbers):05x}"})
            or styled[m[0]],
            text,
        )

    return rewrite


def render(notebook: NotebookNode) -> str:
    """The text of a valid notebook file."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"

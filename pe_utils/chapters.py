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
from collections.abc import Callable, Sequence
from pathlib import Path

import jupytext
import nbformat
import papermill
from nbformat import NotebookNode

from pe_utils.config import home
from pe_utils.storage import write_atomically

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "notebooks"
CHAPTERS = ROOT / "book" / "chapters"
KEPT_CELL_METADATA = ("tags", "mystnb")
VOLATILE = (
    (re.compile(r" at 0x[0-9a-fA-F]+"), " at 0x0"),
    # anchored where a word begins: an embedded picture is one word of a million letters
    (re.compile(r"(?<![^\s'\"])[^\s'\"]*ipykernel_\d+[/\\]\d+\.py"), "[cell]"),
    (
        re.compile(r"(?<![\w.-])" + re.escape(tempfile.gettempdir()) + r"[/\\][^\s'\"<>),;:]+"),
        "[temporary]",
    ),
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
    text = render(clean(notebook))
    write_atomically(target, text)
    attempt.unlink()


def failed_path(source: Path) -> Path:
    """Where a failed run of `source` is kept, to be opened in JupyterLab."""
    return home().resolve() / "runs" / "chapters" / f"{source.stem}.ipynb"


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


def _clean_outputs(
    outputs: list[NotebookNode], rewrite: Callable[[str], str]
) -> list[NotebookNode]:
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


def _rewriter() -> Callable[[str], str]:
    """A function on text that replaces machine paths, addresses and drawn table ids."""
    folders = [f"{folder}{os.sep}" for folder in (ROOT, home().resolve())]
    styled: dict[str, str] = {}

    def number(match: re.Match) -> str:
        return styled.setdefault(match[0], f"T_{len(styled):05x}")

    def rewrite(text: str) -> str:
        for folder in folders:  # before the temporary ones: a clone may lie in one
            text = text.replace(folder, "")
        for pattern, replacement in VOLATILE:
            text = pattern.sub(replacement, text)
        return STYLER_ID.sub(number, text)

    return rewrite


def render(notebook: NotebookNode) -> str:
    """The text of a valid notebook file."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def find_sources(names: Sequence[str]) -> list[Path]:
    """The scripts of the named chapters, or of all, in the book's order.

    Raises:
        ValueError: there is no such chapter.
    """
    known = {path.stem: path for path in sorted(SOURCES.glob("*.py"))}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no chapter {name!r}{hint} There are: {', '.join(known) or 'none'}")
    return [known[name] for name in names or known]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chapters one after the other; stop at the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m pe_utils.chapters", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="like 04_fragility; default: all")
    try:
        sources = find_sources(parser.parse_args(arguments).names)
    except ValueError as error:
        parser.error(str(error))
    for source in sources:
        target, start = CHAPTERS / f"{source.stem}.ipynb", time.monotonic()
        print(f"{source.stem} ...", flush=True)
        try:
            run_chapter(source, target)
        except papermill.PapermillExecutionError as error:
            print(error, file=sys.stderr)
            print(f"{target} is unchanged; the failed run: {failed_path(source)}", file=sys.stderr)
            return 1
        print(f"{source.stem}: {time.monotonic() - start:.0f} s, {target}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

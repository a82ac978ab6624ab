"""The committed chapters are their sources, run top to bottom; the runner that makes them."""

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from pe_utils import chapters
from pe_utils.chapters import CHAPTERS, ROOT, SOURCES, clean, render, run_chapter

PAIRS = [(path, CHAPTERS / f"{path.stem}.ipynb") for path in sorted(SOURCES.glob("*.py"))]
each_chapter = pytest.mark.parametrize(("source", "chapter"), PAIRS, ids=[p.stem for p, _ in PAIRS])


def essence(notebook):
    return [
        (c.cell_type, c.source, {k: v for k, v in c.metadata.items() if k in ("tags", "mystnb")})
        for c in notebook.cells
    ]


@each_chapter
def test_chapter_has_the_cells_of_its_source(source, chapter):
    assert essence(nbformat.read(chapter, as_version=4)) == essence(jupytext.read(source))


@each_chapter
def test_chapter_ran_top_to_bottom_without_error(source, chapter):
    cells = [c for c in nbformat.read(chapter, as_version=4).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    assert not any("injected-parameters" in c.metadata.get("tags", []) for c in cells)
    outputs = [output for c in cells for output in c.outputs]
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs)


@each_chapter
def test_chapter_is_as_the_runner_writes_it(source, chapter):
    text = chapter.read_text(encoding="utf-8")
    assert render(clean(nbformat.reads(text, as_version=4))) == text


@each_chapter
def test_jupyterlab_opens_the_source_with_the_committed_outputs(source, chapter):
    os.utime(chapter)  # written after its source, as always
    manager = jupytext.TextFileContentsManager(root_dir=str(ROOT))
    model = manager.get(f"notebooks/{source.name}", type="notebook")
    assert any(cell.get("outputs") for cell in model["content"].cells)


SOURCE = """\
# %% [markdown]
# # Tiny
# %% tags=["parameters"] mystnb={"figure": {"caption": "c"}}
n: int = 3
# %%
import sys
import tempfile
import matplotlib.pyplot as plt
import pandas as pd

print(object())
print("progress", file=sys.stderr)
print(tempfile.mkdtemp())
# %%
plt.plot([1, n]);
# %%
pd.DataFrame({"a": [1.0]}).style.format("{:.2f}")
# %%
# again
# %%
# again
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("PE_HOME", str(tmp_path / "home"))
    path = tmp_path / "tiny.py"
    path.write_text(SOURCE)
    return path


def test_a_second_run_gives_the_same_bytes(source, tmp_path):
    target = tmp_path / "book" / "tiny.ipynb"
    run_chapter(source, target)
    first = target.read_bytes()
    run_chapter(source, target)
    assert target.read_bytes() == first
    assert [path.name for path in target.parent.iterdir()] == ["tiny.ipynb"]
    assert not chapters.failed_path(source).exists()

    notebook = nbformat.reads(first.decode(), as_version=4)
    assert essence(notebook) == essence(jupytext.read(source))
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    (stream,) = notebook.cells[2].outputs
    assert stream.text == "<object object at 0x0>\n[temporary]\n"
    assert "image/png" in notebook.cells[3].outputs[0].data
    assert 'id="T_00000"' in notebook.cells[4].outputs[0].data["text/html"]


def test_a_failed_run_leaves_the_chapter_and_can_be_opened(source, tmp_path):
    target = tmp_path / "tiny.ipynb"
    target.write_text("old")
    source.write_text(SOURCE + "# %%\n1 / 0\n")
    with pytest.raises(papermill.PapermillExecutionError, match="ZeroDivisionError"):
        run_chapter(source, target)
    assert target.read_text() == "old"
    attempt = nbformat.read(chapters.failed_path(source), as_version=4)
    assert attempt.cells[-1].outputs[-1].ename == "ZeroDivisionError"


def test_command_stops_at_the_first_failure(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(chapters, "SOURCES", tmp_path)
    monkeypatch.setattr(chapters, "CHAPTERS", tmp_path / "chapters")
    (tmp_path / "a_bad.py").write_text("# %%\n1 / 0\n")
    assert chapters.main([]) == 1
    assert "ZeroDivisionError" in (error := capsys.readouterr().err)
    assert str(tmp_path / "home" / "runs" / "chapters" / "a_bad.ipynb") in error
    assert not (tmp_path / "chapters").exists()
    with pytest.raises(SystemExit):
        chapters.main(["a_bat"])
    assert "did you mean 'a_bad'" in capsys.readouterr().err


def test_all_chapters_run_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(chapters, "SOURCES", tmp_path)
    for name in ("02_b", "01_a"):
        (tmp_path / f"{name}.py").touch()
    assert [path.stem for path in chapters.find_sources([])] == ["01_a", "02_b"]
    assert [path.stem for path in chapters.find_sources(["02_b"])] == ["02_b"]


def test_clean_keeps_what_the_book_needs():
    glued = new_output(
        "display_data",
        data={"application/papermill.record/text/plain": f"'{chapters.ROOT / 'results' / 'x'}'"},
        metadata={"scrapbook": {"name": "x", "mime_prefix": "application/papermill.record/"}},
    )
    streams = [new_output("stream", name=n, text=n) for n in ("stdout", "stderr", "stdout")]
    cell = new_code_cell("x", outputs=[*streams, glued], metadata={"tags": ["t"], "papermill": {}})
    (cell,) = clean(new_notebook(cells=[cell])).cells
    assert cell.metadata == {"tags": ["t"]}
    assert [o.get("text") for o in cell.outputs] == ["stdoutstdout", None]
    assert cell.outputs[1].metadata["scrapbook"]["name"] == "x"
    assert cell.outputs[1].data["application/papermill.record/text/plain"] == "'results/x'"


@pytest.mark.parametrize("module", ["chapters", "notebook"])
def test_module_loads_no_torch(module):
    code = f"import sys, pe_utils.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)

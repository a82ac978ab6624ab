"""Every parameter of every chapter with values that cannot be meant: refused before any work."""

import ast

import jupytext
import pytest

from pe_utils.config import ROOT
from pe_utils.train import TrainingRun

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.py"))}
WRONG_TYPE = {"int": ["1.5", "'1'", "True", "[1]"], "float": ["'1'", "True", "[1.0]"],
              "str": ["1", "True", "['a']"], "bool": ["1", "'true'"],
              "list[int]": ["1", "'1'", "[1.5]", "['1']", "[True]", "[None]"],
              "list[float]": ["1.0", "['1']", "[True]"],
              "list[str]": ["'a'", "[1]", "[None]"]}  # fmt: skip
OUT_OF_RANGE = {"int": ["-1"], "float": ["float('nan')", "float('inf')", "-1.0"],
                "str": ["'nonsense'", "''"],
                "list[int]": ["[]", "[-1]", "[1, 1]"],
                "list[float]": ["[]", "[float('nan')]", "[0.5, 0.5]"],
                "list[str]": ["[]", "['nonsense']", "['']"]}  # fmt: skip
ALLOWED = {("data_root", "'nonsense'")}  # at preset smoke, which reads none


def code(notebook):
    return [c for c in jupytext.read(NOTEBOOKS[notebook]).cells if c.cell_type == "code"]


def declared(notebook):
    """(name, type without None, may be None) of every parameter."""
    (cell,) = [c for c in code(notebook) if "parameters" in c.metadata.get("tags", [])]
    for node in ast.parse(cell.source).body:
        kind = ast.unparse(node.annotation)
        yield node.target.id, kind.removesuffix(" | None"), kind.endswith("None")


CASES = [(notebook, name, value, values is WRONG_TYPE)
         for notebook in NOTEBOOKS for name, kind, _ in declared(notebook)
         for values in (WRONG_TYPE, OUT_OF_RANGE) for value in values.get(kind, [])
         if (name, value) not in ALLOWED]  # fmt: skip


def run_chapter(notebook, injected):
    """Run the cells of a chapter, after its parameters those that papermill would inject."""
    cells = [c.source for c in code(notebook)]
    place = [c.metadata.get("tags", [])[:1] for c in code(notebook)].index(["parameters"])
    cells.insert(place + 1, f"# Parameters\n{injected}\n")
    space = {}
    for i, source in enumerate(cells):
        space["In"] = ["", *cells[: i + 1]]
        exec(compile(source, f"{notebook} cell {i}", "exec"), space)


@pytest.fixture(autouse=True)
def no_work(home, monkeypatch):
    def work(*_):
        raise AssertionError("work began")

    monkeypatch.setattr(TrainingRun, "__init__", work)


@pytest.mark.parametrize(("notebook", "name", "value", "of_wrong_type"), CASES)
def test_a_wrong_value_is_refused_by_name(notebook, name, value, of_wrong_type):
    preset = "" if name == "preset" else "preset = 'smoke'\n"
    kinds = TypeError if of_wrong_type else (ValueError, FileNotFoundError)
    with pytest.raises(kinds) as refused:
        run_chapter(notebook, f"{preset}{name} = {value}")
    said, content = str(refused.value), value.strip("[]'")
    assert name in said or (content and content in said)  # an empty text is part of any


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_none_and_unknown_names_are_refused(notebook):
    for name, _, may_be_none in declared(notebook):
        if not may_be_none:
            with pytest.raises(TypeError, match=f"{name}=None must be"):
                run_chapter(notebook, f"{name} = None")
        with pytest.raises(ValueError, match=f"unknown parameter '{name}x'; did you mean '{name}'"):
            run_chapter(notebook, f"{name}x = 1")

"""What holds of the repository as a whole: layers, notebooks, pins, links."""

import ast
import csv
import re
import subprocess
import tomllib
from pathlib import Path

import jupytext
import pytest
import yaml

from pe_utils import licences

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "pe_utils").glob("*.py"))
PAGES = sorted((ROOT / "book").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
LEVEL = {
    "__init__": 0, "config": 0, "metrics": 0, "stats": 0, "families": 0, "launch": 0,
    "checkpoints": 0, "storage": 0, "licences": 1,
    "interventions": 1, "capture": 1, "corruptions": 0, "plots": 1, "criteria": 1,
    "data": 3, "models": 1, "results": 1,
    "evaluate": 4, "train": 5, "claims": 6, "selftest": 4, "probe": 6, "notebook": 6, "chapters": 6,
    "remeasure": 6, "cards": 2, "encodings": 0, "criteria_locality": 1, "protocols": 4, "packed": 1,
    "sources": 2, "cost": 6,
}  # fmt: skip
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_imports_point_strictly_downwards(path):
    for name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        assert LEVEL[name] < LEVEL[path.stem], f"{path.stem} imports {name}"


def imported_modules(tree):
    """The modules of pe_utils that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            package, _, name = node.module.partition(".")
            if package == "pe_utils":
                yield from [name] if name else (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                package, _, name = alias.name.partition(".")
                if package == "pe_utils":
                    yield name or "__init__"


def code_cells(path):
    return [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]


def is_parameters(cell):
    return "parameters" in cell.metadata.get("tags", [])


@each_notebook
def test_notebooks_compose_and_never_define(path):
    cells = code_cells(path)
    assert [c.source for c in cells if len(c.source.splitlines()) > 15] == []
    for node in ast.walk(ast.parse("\n".join(c.source for c in cells))):
        assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name for a in node.names} | {getattr(node, "module", None)}
            assert not names & {"urllib", "urllib.request", "requests"}, "no downloads"


@each_notebook
def test_notebooks_hold_no_typed_in_data(path):
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict) and not is_parameters(
                cell
            ):
                numbers = [
                    n for n in ast.walk(node)
                    if isinstance(n, ast.Constant) and type(n.value) in (int, float)
                ]  # fmt: skip
                assert len(numbers) < 6, ast.unparse(node)


@each_notebook
def test_notebooks_declare_and_check_their_parameters(path):
    cells = code_cells(path)
    (place,) = [i for i, cell in enumerate(cells) if is_parameters(cell)]
    statements = ast.parse(cells[place].source).body
    assert all(isinstance(node, ast.AnnAssign) for node in statements), "annotate each parameter"
    assert "preset" in [node.target.id for node in statements]
    assert "check_parameters(In)" in cells[place + 1].source
    heavy = {"torch", "timm", "pandas", "matplotlib"}
    for node in ast.walk(ast.parse("\n".join(c.source for c in cells[: place + 2]))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            assert not {n.partition(".")[0] for n in names} & heavy, "check before heavy imports"


UNSAFE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load",
          "pickle.loads", "marshal.loads", "yaml.load", "yaml.unsafe_load", "joblib.load",
          "shutil.unpack_archive", "extractall", "extract"}  # fmt: skip


def unsafe_calls(text):
    """Calls that would run what a file or a parameter says, or write where an archive says."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name, options = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        if name in UNSAFE or name.rpartition(".")[2] in ("extractall", "extract"):
            yield name
        if name == "torch.load" and options.get("weights_only") != "True":
            yield "torch.load without weights_only=True"
        if name in ("load_checkpoint", "load_state_dict") and "weights_only" not in options:
            yield f"{name} without weights_only"
        if (
            options.get("shell", "False") != "False"
            or options.get("allow_pickle", "False") != "False"
        ):
            yield f"{name} with shell or allow_pickle"


@pytest.mark.parametrize("path", [*MODULES, *NOTEBOOKS], ids=lambda p: p.stem)
def test_nothing_that_is_read_can_be_executed(path):
    assert list(unsafe_calls(path.read_text(encoding="utf-8"))) == []


def test_the_licence_of_every_dependency_is_listed():
    rows = list(csv.DictReader(licences.TABLE.read_text(encoding="utf-8").splitlines()))
    assert [row["package"] for row in rows] == licences.direct_dependencies()
    assert all(row["licence"] != "not stated" for row in rows)


def test_an_unsafe_call_would_be_found():
    text = """
eval(x); os.system(x); torch.load(x); np.load(x, allow_pickle=True); archive.extractall()
subprocess.run(x, shell=True); load_checkpoint(model, x); torch.load(x, weights_only=True)
"""
    assert len(list(unsafe_calls(text))) == 7


TYPED = {  # decimals that are definitions or settings, never results
    "intro.md": {"3.11", "5.1", "5.2", "5.3", "5.4", "5.5"},  # Python; sections of the paper
    "locality.md": {"0.4", "0.05"},  # strength of the jitter; a criterion
    "methods.md": {"2.5", "1.33"},  # the published blur, and what its kernel leaves of it
    "00_scoreboard.py": {"0.4"},  # a level of alpha that the claims name
    "05_alpha_scaling.py": {"0.4"},
    "06_training.py": {"0.05", "0.15", "0.2"},  # the paper's settings
    "07_initialisation.py": {"0.4", "0.1"},  # levels of alpha that the claims name
    "10_what_ssdc_measures.py": {"0.01"},  # the error asked for
    "11_anchoring_and_fragility.py": {"0.4"},  # a level of alpha that the claims name
}


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda p: p.name)
def test_decimals_in_prose_are_glued_from_results(path):
    assert set(decimals(prose(path))) <= TYPED.get(path.name, set())


def test_a_typed_decimal_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("SSDC is 0.62 here, {glue:text}`a:.3f` there, $x = 0.5$, `alpha=0.4`.\n")
    assert decimals(prose(page)) == ["0.62"]
    script = tmp_path / "chapter.py"
    script.write_text("# %% [markdown]\n# It fell to 1.25.\n\n# %%\nx = 0.75\n")
    assert decimals(prose(script)) == ["1.25"]


def prose(path):
    """The running text: no code, formulas, glued values or link targets; published values aside."""
    if path.suffix == ".py":
        cells = jupytext.read(path).cells
        text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8").partition("(published-notes)=")[0]
    for hidden in (
        r"(?s)```.*?```",
        r"\{[a-z:]+\}`[^`]*`",
        r"`[^`]*`",
        r"\$[^$]*\$",
        r"\]\([^)]*\)",
    ):
        text = re.sub(hidden, "", text)
    return text


def decimals(text):
    return re.findall(r"(?<![\w.])\d+\.\d+(?![\w])", text)


def test_every_reference_is_cited():
    entries = re.findall(r"@\w+\{(\w+),", (ROOT / "book/references.bib").read_text("utf-8"))
    texts = "".join(p.read_text("utf-8") for p in (*PAGES, *NOTEBOOKS))
    cited = {key for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", texts)
             for key in keys.split(",")}  # fmt: skip
    assert set(entries) == cited
    assert len(entries) == len(set(entries))


def test_every_notebook_has_a_chapter_and_a_place_in_the_book():
    names = [path.stem for path in NOTEBOOKS]
    assert [path.stem for path in sorted((ROOT / "book/chapters").glob("*.ipynb"))] == names
    assert sorted(p.removeprefix("chapters/") for p in toc_pages() if "/" in p) == names


def test_every_page_of_the_book_is_in_its_contents():
    written = [path.stem for path in (ROOT / "book").glob("*.md")]
    assert sorted(page for page in toc_pages() if "/" not in page) == sorted(written)


def toc_pages():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return re.findall(r"'(?:file|root)': '([^']+)'", repr(toc))


@pytest.mark.parametrize("name", ["_config.yml", "_toc.yml"])
def test_book_reads_its_settings_through_relative_links(name):
    link = ROOT / "book" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert not (ROOT / name).is_symlink()


def test_environment_has_the_pins_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    parts = ("book", "run", "cluster")
    assert extras["dev"][0] == f"pe_utils[{','.join(parts)}]"
    pins = [
        *project["dependencies"],
        *(pin for p in parts for pin in extras[p]),
        *extras["dev"][1:],
    ]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, packages = environment["dependencies"]
    assert python == f"python{project['requires-python']}"
    assert pip == "pip"
    assert packages["pip"] == ["-e .", *pins]


def test_lock_holds_exact_versions_of_all_that_is_asked_for():
    header, *lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert header.startswith("# exact versions, written by make lock")
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    locked = {canonical(line.partition("==")[0]) for line in lines}
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    asked = environment["dependencies"][2]["pip"][1:]
    assert {canonical(re.match(r"[\w.-]+", pin)[0]) for pin in asked} - locked == set()


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_file_names_a_path_of_one_machine():
    folders = "|".join(("work", "tmp", "root", "home", "Users"))
    pattern = re.compile(rf"(?<![\w.:/*-])/(?:{folders})/")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.splitlines():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):  # binary; deleted but not yet committed; a folder
            continue
        found += [
            f"{name}: {line.strip()[:100]}" for line in text.splitlines() if pattern.search(line)
        ]
    assert found == []

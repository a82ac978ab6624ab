"""The parameter check, alone and under papermill."""

import jupytext
import papermill
import pytest

from pe_utils.notebook import check_parameters

DECLARED = """
preset: str = "laptop"  # which runs
data_root: str | None = None
seeds: list[int] = [0]
names: list[str] = ["a"]
n_images: int = 64
sigma: float = 2.5
limit: int | None = None
fast: bool = False
"""
CHECK = "check_parameters(In)"


def check(injected):
    check_parameters(["", DECLARED, f"# Parameters\n{injected}\n", CHECK])


@pytest.mark.parametrize(
    "injected",
    [
        'preset = "smoke"',
        'data_root = "/data"\nseeds = [1, 2]',
        "data_root = None\nlimit = None",
        "limit = 3\nseeds = [0]",
        "sigma = 1\nn_images = 1",
        "sigma = 0.0",
        "fast = True\nnames = ['x']",
    ],
)
def test_right_values_pass(injected):
    check(injected)


@pytest.mark.parametrize(
    ("injected", "message"),
    [
        ("preset = 3", r"preset=3 must be str, like the default 'laptop'; .* -r preset 3"),
        ("data_root = 1", r"data_root=1 must be str \| None"),
        ("seeds = 1", r"seeds=1 must be list\[int\].* -y '\{seeds: \[0\]\}'"),
        ("seeds = [0, '1']", r"seeds=\[0, '1'\] must be list\[int\]"),
        ("seeds = [True]", "must be list"),
        ("names = [1]", r"must be list\[str\]"),
        ("n_images = 2.0", "n_images=2.0 must be int"),
        ("n_images = True", "n_images=True must be int"),
        ("n_images = None", "n_images=None must be int"),
        ("sigma = '2.5'", "sigma='2.5' must be float"),
        ("sigma = True", "sigma=True must be float"),
        ("limit = 'x'", r"limit='x' must be int \| None.* -y '\{limit: 1\}'"),
        ("fast = 1", "fast=1 must be bool"),
        ("fast = 'true'", r"fast='true' must be bool.* -y '\{fast: false\}'"),
    ],
)
def test_a_wrong_type_says_what_is_right_and_how_to_pass_it(injected, message):
    with pytest.raises(TypeError, match=message):
        check(injected)


@pytest.mark.parametrize(
    ("injected", "message"),
    [
        ("seeds = []", r"seeds=\[\] must have an entry, and none twice, like the default \[0\]"),
        ("seeds = [1, 2, 1]", r"seeds=\[1, 2, 1\] must have an entry, and none twice"),
        ("seeds = [1, -1]", "must be at least 0, and finite"),
        ("n_images = 0", "n_images=0 must be at least 1"),
        ("sigma = float('nan')", "sigma=nan must be at least 0, and finite"),
        ("sigma = float('inf')", "sigma=inf must be at least 0, and finite"),
        ("names = ['a', '']", "must not be empty"),
        ("data_root = ''", "data_root='' must not be empty"),
    ],
)
def test_a_value_that_nobody_means_is_refused(injected, message):
    with pytest.raises(ValueError, match=message):
        check(injected)


def test_an_unknown_name_gets_the_nearest_and_the_list():
    message = "unknown parameter 'n_imges'; did you mean 'n_images'.* preset, data_root, seeds"
    with pytest.raises(ValueError, match=message):
        check("n_imges = 3")
    with pytest.raises(ValueError, match="'zzz'; this chapter has preset, "):
        check("zzz = 3")


def test_nothing_injected_is_nothing_to_check():
    check_parameters(["", DECLARED, CHECK])
    check_parameters(["", "fast = 'true'", "# Parameters of mine\nx = 1", CHECK])


def test_a_cell_run_twice_in_jupyterlab_changes_nothing():
    injected = "# Parameters\nfast = 'true'\n"
    for history in ([DECLARED, injected, injected, CHECK], [DECLARED, injected, CHECK, CHECK]):
        with pytest.raises(TypeError, match="fast"):
            check_parameters(["", *history])


def test_an_annotation_outside_the_known_ones_is_refused():
    with pytest.raises(TypeError, match=r"annotation dict\[str, int\]"):
        check_parameters(["x: dict[str, int] = {}", "# Parameters\nx = {}", CHECK])


SOURCE = f"""
# %% tags=["parameters"]
{DECLARED}
# %%
from pe_utils.notebook import check_parameters

check_parameters(In)
# %%
from pathlib import Path

Path("work").write_text(repr((preset, seeds, sigma)))
"""


@pytest.fixture
def execute(tmp_path):
    """Run a tiny chapter with papermill, as a user does."""

    def run(**parameters):
        papermill.execute_notebook(
            jupytext.reads(SOURCE, fmt="py:percent"),
            str(tmp_path / "out.ipynb"),
            parameters=parameters,
            cwd=str(tmp_path),
            kernel_name="python3",
            language="python",
            progress_bar=False,
        )
        return (tmp_path / "work").read_text()

    return run


def test_papermill_with_right_parameters(execute):
    assert execute(preset="smoke", seeds=[0, 1], sigma=1) == "('smoke', [0, 1], 1)"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pressets": "smoke"}, "ValueError: unknown parameter 'pressets'; did you mean 'preset'"),
        ({"fast": "true"}, "TypeError: fast='true' must be bool"),
    ],
)
def test_papermill_stops_before_any_work(execute, tmp_path, parameters, message):
    with pytest.raises(papermill.PapermillExecutionError) as failure:
        execute(**parameters)
    assert message in str(failure.value)
    assert not (tmp_path / "work").exists()

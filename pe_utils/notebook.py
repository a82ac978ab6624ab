"""What the chapters share. Light to import: a bad parameter is reported before any heavy import."""

import ast
import base64
import difflib
import html
import io
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from IPython.display import HTML

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INJECTED = "# Parameters"  # papermill's first line of the cell that it inserts


class _Declared(NamedTuple):
    type: ast.expr
    default: object


def check_parameters(history: Sequence[str]) -> None:
    """Stop a run whose parameters cannot mean what the user meant.

    Papermill only warns of an unknown name and passes any type on. Called as
    `check_parameters(In)` in the cell after the parameters, whose annotations are the types:
    int, float, str, bool, list[...] and unions with None. An int passes as float, a bool
    never as a number. Does nothing where papermill injected nothing (JupyterLab).

    Args:
        history: the session's cells in order of execution: IPython's `In`.

    Raises:
        ValueError: a name that the chapter does not have, or a value that no parameter can have: a
            number below 0 (below 1 in `n_...` and `..._epochs`) or not finite, an empty text or
            list, a list with an entry twice.
        TypeError: a value that does not fit its annotation.
    """
    cells = [cell for cell in history if cell.strip()]
    injected = [i for i, cell in enumerate(cells) if cell.splitlines()[0].rstrip() == INJECTED]
    if not injected:
        return
    declared = _last_declaration(cells[: injected[-1]])
    for name, node in _assignments(cells[injected[-1]]):
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"unknown parameter {name!r}; {hint}this chapter has {', '.join(declared)}"
            )
        value = _value(node)
        if not _fits(value, declared[name].type):
            raise TypeError(
                f"{name}={value!r} must be {ast.unparse(declared[name].type)}, like the default "
                f"{declared[name].default!r}; with papermill: {_how_to_pass(name, value, declared)}"
            )
        if wrong := _never_meant(name, value):
            raise ValueError(
                f"{name}={value!r} {wrong}, like the default {declared[name].default!r}"
            )


def _never_meant(name: str, value: object) -> str | None:
    """What a value of the right type has to be all the same; None where it is."""
    if isinstance(value, list):
        if not value or len({*value}) < len(value):
            return "must have an entry, and none twice"
        return next(filter(None, (_never_meant(name, entry) for entry in value)), None)
    if value == "":
        return "must not be empty"
    if isinstance(value, int | float):
        least = 1 if name.startswith("n_") or name.endswith("_epochs") else 0
        return None if least <= value < math.inf else f"must be at least {least}, and finite"
    return None


def figure_html(figure: "Figure", alt: str, caption: str) -> HTML:
    """A figure with alt text and caption, to be glued and shown on another page of the book."""
    stored = io.BytesIO()
    figure.savefig(stored, format="png", dpi=150)
    data = base64.b64encode(stored.getvalue()).decode()
    return HTML(
        f'<figure class="align-default"><img alt="{html.escape(alt)}" style="max-width: 100%" '
        f'src="data:image/png;base64,{data}"><figcaption>{html.escape(caption)}</figcaption>'
        "</figure>"
    )


def _last_declaration(cells: Sequence[str]) -> dict[str, _Declared]:
    for cell in reversed(cells):
        if cell.splitlines()[0].rstrip() != INJECTED and (found := _declarations(cell)):
            return found
    raise ValueError("no annotated parameters before the injected ones")


def _declarations(cell: str) -> dict[str, _Declared]:
    return {
        node.target.id: _Declared(node.annotation, _value(node.value))
        for node in ast.parse(cell).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }


def _assignments(cell: str) -> list[tuple[str, ast.expr]]:
    nodes = [node for node in ast.parse(cell).body if isinstance(node, ast.Assign)]
    return [(node.targets[0].id, node.value) for node in nodes]


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.List):
        return [_value(entry) for entry in node.elts]
    if isinstance(node, ast.Call):  # papermill writes float('nan')
        return float(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)


def _fits(value: object, annotation: ast.expr) -> bool:
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Constant(value=None):
            return value is None
        case ast.Subscript(value=ast.Name(id="list"), slice=element):
            return isinstance(value, list) and all(_fits(v, element) for v in value)
        case ast.Name(id="float"):
            return type(value) in (int, float)
        case ast.Name(id="int" | "str" | "bool" | "list" as name):
            return type(value).__name__ == name
    raise TypeError(f"the annotation {ast.unparse(annotation)} is not one that can be checked")


def _how_to_pass(name: str, value: object, declared: dict[str, _Declared]) -> str:
    kinds = {n.id for n in ast.walk(declared[name].type) if isinstance(n, ast.Name)}
    if "str" in kinds and "list" not in kinds:  # -p turns 1 and True into a number and a bool
        return f"-r {name} {value if isinstance(value, int | float) else 'TEXT'}"
    example = declared[name].default
    if example is None:
        scalar = {"str": "a", "int": 1, "float": 0.5, "bool": True}[min(kinds - {"list"})]
        example = [scalar] if "list" in kinds else scalar
    return f"-y '{{{name}: {json.dumps(example)}}}'"

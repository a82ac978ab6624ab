"""The licence of every direct dependency: `python -m pe_utils.licences`, a step of `make lock`."""

import csv
import io
import re
import tomllib
from importlib.metadata import metadata

from pe_utils.config import ROOT
from pe_utils.storage import write_atomically

TABLE = ROOT / "book" / "_assets" / "licences.csv"


def direct_dependencies() -> list[str]:
    """Names of what pyproject.toml asks for, sorted; its own extras left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {re.match(r"[\w.-]+", line)[0] for line in wanted}
    return sorted(names - {project["name"]}, key=str.lower)


def licence(name: str) -> str:
    """As the installed package states it: its expression, its classifier, or its text's start."""
    stated = metadata(name)
    classifiers = [line.rpartition(" :: ")[2] for line in stated.get_all("Classifier", [])
                   if line.startswith("License ::")]  # fmt: skip
    text = (stated.get("License") or "").strip().split("\n")[0]
    return stated.get("License-Expression") or ", ".join(classifiers) or text[:60] or "not stated"


def main() -> None:
    rows = [("package", "version", "licence")]
    rows += [(name, metadata(name)["Version"], licence(name)) for name in direct_dependencies()]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    write_atomically(TABLE, stream.getvalue())


if __name__ == "__main__":
    main()

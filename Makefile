# `make` lists what can be made. Other Python: make test PYTHON=python3.12
PYTHON ?= python3
PRESET ?= laptop
VENV ?= .venv
VENV_BOOK ?= .venv-book
PIP = -m pip install --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help book pdf test test-long format chapters train run test-slurm lock audit clean python
.DELETE_ON_ERROR:

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

book: $(VENV_BOOK)/.installed  ## build the book into book/_build/html (light: no torch)
	rm -f book/_build/html/index.html
	$(VENV_BOOK)/bin/jupyter-book build book --all -W --keep-going
	test -f book/_build/html/index.html

pdf: $(VENV_BOOK)/.installed  ## print the whole book into book/_build/book.pdf (needs Chromium)
	$(VENV_BOOK)/bin/jupyter-book build book --builder singlehtml
	chromium --headless --no-sandbox --disable-gpu --disable-background-networking \
	--virtual-time-budget=60000 --no-pdf-header-footer --print-to-pdf=book/_build/book.pdf \
	"file://$(CURDIR)/book/_build/singlehtml/intro.html"

test: $(VENV)/.installed  ## check the style and run all tests
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-long: $(VENV)/.installed  ## try kills and damaged files many more times (not part of test)
	PE_LONG=1 $(VENV)/bin/python -m pytest tests/test_faults.py

format: $(VENV)/.installed  ## put the code in shape
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

chapters: $(VENV)/.installed  ## execute every notebook into book/chapters; write the model cards
	$(VENV)/bin/python -m pe_utils.chapters
	$(VENV)/bin/python -m pe_utils.cards

train: $(VENV)/.installed  ## train the pilot (seed 0) of PRESET (laptop)
	$(VENV)/bin/python -m pe_utils.train --preset $(PRESET)

test-slurm: $(VENV)/.installed  ## run the smoke grid on a real one-node Slurm (root; not part of test)
	PATH="$(abspath $(VENV))/bin:$$PATH" tests/slurm.sh

run: $(VENV)/.installed  ## train, measure and build what PRESET (laptop) still lacks
	PATH="$(abspath $(VENV))/bin:$$PATH" snakemake --config preset=$(PRESET)

lock: python  ## write requirements.lock from the newest versions that fit
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP) -e ".[dev]"
	.venv-lock/bin/python -c 'import platform as p; \
	print(f"# exact versions, written by make lock (Python {p.python_version()}, {p.system()} {p.machine()})")' \
	> requirements.lock.new
	.venv-lock/bin/python -m pip list --format freeze --exclude-editable --exclude pip > .venv-lock/list
	sed 's/+.*//' .venv-lock/list | LC_ALL=C sort -f >> requirements.lock.new
	mv requirements.lock.new requirements.lock
	.venv-lock/bin/python -m pe_utils.licences
	rm -rf .venv-lock

audit: python  ## ask for known holes in the versions of requirements.lock (needs the network)
	rm -rf .venv-audit
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python $(PIP) pip-audit
	.venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r requirements.lock

clean:  ## remove the built book
	rm -rf book/_build

$(VENV)/.installed: pyproject.toml requirements.lock | python
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) -c requirements.lock -e ".[dev]"
	touch $@

$(VENV_BOOK)/.installed: pyproject.toml requirements.lock | python
	$(PYTHON) -m venv $(VENV_BOOK)
	$(VENV_BOOK)/bin/python $(PIP) -c requirements.lock -e ".[book]"
	touch $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "This needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }

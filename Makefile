# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Set to https://download.pytorch.org/whl/cpu to take PyTorch's own CPU build (Linux: 200 MB instead of several GB).
TORCH_INDEX ?=
# Tests run in so many processes, each with its own copy of the default model (1 GB).
JOBS ?= 2
# The versions that CI runs with; `make setup CONSTRAINTS=` takes the newest that pyproject.toml allows.
CONSTRAINTS ?= $(wildcard constraints.txt)
BIN := .venv/bin
READY := .venv/.ready
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Threads of OpenMP that wait sleep instead of spinning: on a machine with other work, spinning costs several times the time.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test check docs dist lock bench browser clean setup

demo: setup
	$(BIN)/python examples/demo.py

test: setup browser
	$(BIN)/shoal models pull smollm2-135m
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

# The console is tested in a real browser. Where there is none and it cannot be installed, those tests are skipped.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	apt-get install --yes --quiet chromium || { apt-get update --quiet && apt-get install --yes --quiet chromium; } && exit 0; fi; \
	echo "No Chromium here: the tests of the console will be skipped (apt-get install chromium)."

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	rm -rf .check && mkdir .check && ln -s .. .check/shoal
	MYPYPATH=.check $(BIN)/mypy --explicit-package-bases
	MYPYPATH=.check $(BIN)/mypy --explicit-package-bases tests/typing/public_api.py
	rm -rf .check
	$(BIN)/python tests/check_readme.py README.md docs/*.md
	set -e; for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example; done

# The pages. The reference is read from docstrings below build/reference; nothing is imported or fetched.
docs: setup
	rm -rf build/reference && mkdir -p build/reference/shoal
	for part in __init__.py cache gated_llm rag router; do ln -s ../../../$$part build/reference/shoal/$$part; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Wheel and sdist, checked as the package index would.
dist: setup
	rm -rf build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist . >/dev/null
	$(BIN)/twine check --strict build/dist/*

bench: setup
	$(BIN)/python -m benchmarks

# Writes down what is installed: after an upgrade that has passed all checks.
lock:
	{ echo "# What CI installs; written by make lock."; $(BIN)/python -m pip list --format=freeze --exclude-editable \
	--disable-pip-version-check | sed 's/+[^ ]*$$//' | grep -v '^pip=='; } > constraints.txt

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Shoal needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv: PyTorch about 200 MB (CPU build), the other libraries about 250 MB."
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --progress-bar on $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[all,train,ray,docs]" --group dev
	touch $@

clean:
	rm -rf .venv build dist .check *.egg-info

# Everything sets itself up: the first call makes .venv, later calls start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: demo test lint lint-ruff lint-format lint-types lint-imports check format test-fast test-slow test-gpu wheel bench tables picture notebooks docs clean help

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing purereplay and its tools into $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS_READY): pyproject.toml constraints.txt | $(READY)
	@echo "installing the tools of the documentation into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(READY)  ## Pure Replay and Self-Purified Replay on 1,797 digits with 40 % wrong labels; then review them
	@$(BIN)/purereplay demo

test: $(READY)  ## the test suite, in a few minutes on two cores
	@$(BIN)/python -m pytest -n 2

test-fast: $(READY)  ## the tests without the long ones: under a minute on two cores
	@$(BIN)/python -m pytest -n 2 -m 'not long and not slow and not gpu' --ignore tests/hostile

test-slow: $(READY)  ## the tests that take many minutes: twenty kills, a million samples, five seeds
	$(BIN)/python -m pytest -m slow -s

test-gpu: $(READY)  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

lint: lint-ruff lint-format lint-types lint-imports  ## all four checks of the code that follow

lint-ruff: $(READY)  ## ruff's rules
	@$(BIN)/ruff check .

lint-format: $(READY)  ## ruff's formatting, checked only
	@$(BIN)/ruff format --check .

lint-types: $(READY)  ## mypy --strict
	@$(BIN)/mypy

lint-imports: $(READY)  ## import-linter: imports go only down the rooms
	@$(BIN)/lint-imports

check: lint test  ## lint and test, as the continuous integration does

format: $(READY)  ## fix and format the code with ruff
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

wheel: $(READY)  ## build the installable package in dist/
	@rm -f dist/purereplay-*.whl
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

bench: $(READY)  ## speed on this machine, as ratios against plain code; ARGS="--json FILE" saves it
	@$(BIN)/python benchmarks/speed.py $(ARGS)

tables: $(READY)  ## generate the documents' tables from results/, and settings and commands from the code
	@$(BIN)/python docs/tables.py
	@$(BIN)/python docs/reference_pages.py
	@$(BIN)/python docs/your_data_page.py

picture: $(READY)  ## draw docs/architecture.svg and the pictures of docs/pure-replay.md
	@$(BIN)/python docs/architecture.py
	@$(BIN)/python docs/pure_replay_picture.py

notebooks: $(READY)  ## execute the notebooks and store their outputs
	@$(BIN)/python docs/notebooks.py

docs: $(READY) $(DOCS_READY)  ## the documentation site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html, or serve it with: $(BIN)/python -m http.server --directory site"

clean:  ## remove the environment, the caches, dist/ and site/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist site

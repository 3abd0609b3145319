# Everything sets itself up: the first call makes .venv, later calls start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint check format test-slow test-gpu bench tables clean help

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing purereplay and its tools into $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## Self-Purified Replay on 1,797 digits with 40 % wrong labels
	@$(BIN)/purereplay demo

test: $(READY)  ## the test suite
	@$(BIN)/python -m pytest -n 2

test-slow: $(READY)  ## the tests that take long (twenty kills, a million samples, five seeds)
	$(BIN)/python -m pytest -m slow -s

test-gpu: $(READY)  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

lint: $(READY)  ## ruff, mypy --strict, the order of the rooms
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

check: lint test  ## lint and test

format: $(READY)  ## let ruff fix and format the code
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(READY)  ## speed on this machine, as ratios against plain code (JSON: make bench ARGS="--json new.json")
	@$(BIN)/python benchmarks/speed.py $(ARGS)

tables: $(READY)  ## generate the tables of REPRODUCTION.md and docs/ from the files in results/
	@$(BIN)/python docs/tables.py

clean:  ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

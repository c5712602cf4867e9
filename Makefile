# make help

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo checks test test-all bench bench-data bench-eval wheel clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/ready  ## Create .venv and install everything that development needs

# The marker is written last, so an installation that was cut short is done again.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup  ## Text to a checkpoint that transformers loads, in a few minutes on two cores
	$(RUN)/python scripts/demo.py

checks: setup  ## Formatting, lint and types
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

test: setup  ## All tests but the slow ones and those that need a GPU
	$(RUN)/python -m pytest

test-all: setup  ## The slow tests too
	$(RUN)/python -m pytest -m 'not gpu'

bench: setup  ## Paired timings against the Hugging Face implementation
	$(RUN)/python scripts/bench.py

bench-eval: setup  ## Memory against a sliding window, cached projections against new ones
	$(RUN)/python scripts/bench_eval.py

bench-data: setup  ## Paired timings of preparing text against sentencepiece's own encode
	$(RUN)/python scripts/bench_data.py

wheel: setup  ## Build the wheel into dist/
	$(RUN)/python -m build --wheel

clean:  ## Remove the environment and everything built; runs stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: serve test lint golden clean

serve: $(VENV)/.serve
	$(BIN)/rtk serve $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(VENV)/.test  ## make the golden ids of the real model anew, with transformers' generate
	$(BIN)/python tests/e2e/make_golden.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

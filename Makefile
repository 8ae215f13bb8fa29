# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# what a failed step leaves is not taken for finished: a virtual environment without pip, for example
.DELETE_ON_ERROR:

.PHONY: serve test lint golden docs clean

serve: $(VENV)/.serve
	$(BIN)/rtk serve $(ARGS)

test: lint  ## two at a time, each file by one of them
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(VENV)/.test  ## make the golden ids of the real model anew, with transformers' generate
	$(BIN)/python tests/e2e/make_golden.py

docs: $(VENV)/.test  ## make the generated parts of the docs anew
	$(BIN)/python docs/make_keys.py
	$(BIN)/python docs/make_models.py
	$(BIN)/python docs/plugins/generate.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("error: rtk needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

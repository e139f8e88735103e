# Every target sets up what it needs in .venv; nothing has to be installed first but Python and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint bench docs format clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train digits, 20:1 and long-tailed, with every algorithm of the paper
	$(BIN)/classgrad demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two test processes on two cores: more threads would only wait for each other.
test: export OMP_NUM_THREADS = 1
test: lint  ## everything CI checks
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=95

bench: $(READY)
	$(BIN)/python benchmarks/step_cost.py

docs: $(READY)
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .coverage* docs/_build

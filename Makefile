# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyPI's own Linux build of torch brings gigabytes of CUDA; without a GPU, take the
# build for CPUs.
TORCH_INDEX := $(shell nvidia-smi -L >/dev/null 2>&1 || \
	echo --extra-index-url https://download.pytorch.org/whl/cpu)
DEMO_MINUTES ?= 7

.PHONY: demo test lint wheel-test clean

demo: $(VENV)/ready
	$(BIN)/evict-profile profile --model qwen3-30b-a3b --sweep demo \
		--max-minutes $(DEMO_MINUTES)

test: $(VENV)/ready lint
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Installs the wheel by itself, away from the checkout: a profile, and one measured cell.
wheel-test: $(VENV)/ready
	bash tests/wheel_smoke.sh $(BIN)/python

$(VENV)/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --retries 1 --constraint constraints.txt \
		$(TORCH_INDEX) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--group dev --editable .
	touch $@

clean:
	rm -rf $(VENV) dist build runs

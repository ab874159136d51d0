# For a newcomer: `make demo`, `make demo-world` and `make test`. Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyPI's own Linux build of torch brings gigabytes of CUDA; without a GPU, take the
# build for CPUs.
TORCH_INDEX := $(shell nvidia-smi -L >/dev/null 2>&1 || \
	echo --extra-index-url https://download.pytorch.org/whl/cpu)
DEMO_MINUTES ?= 7

WORLD := worlds/stdlib
RUNS := runs/world
PROMPTS := 16

.PHONY: demo demo-world test lint wheel-test clean

demo: $(VENV)/ready
	$(BIN)/evict-profile profile --model qwen3-30b-a3b --sweep demo \
		--max-minutes $(DEMO_MINUTES)

# Trained weights, real text, real clocks: prices, traces, the verdict, and whether the
# replay that it rests on agrees with the engine. What is calibrated on one half of the
# prompts is judged on the other.
demo-world: $(VENV)/ready
	rm -rf $(RUNS)/tables
	$(BIN)/evict-profile profile --model $(WORLD)/model.yaml --sweep small-world \
		--out $(RUNS)/sweep --tables $(RUNS)/tables --max-minutes 4
	$(BIN)/evict-profile trace $(WORLD) --out $(RUNS)/traces.parquet \
		--prompts $(PROMPTS) --tokens 48 --batch 1 --batch 4
	$(BIN)/evict-profile calibrate $(RUNS)/traces.parquet --part 1/2 \
		--table $$(echo $(RUNS)/tables/*/*/*/1.0.0.json) --out $(RUNS)/calibration.html
	$(BIN)/evict-profile replay $(RUNS)/traces.parquet --part 2/2 --batch 1 --batch 4 \
		--table $$(echo $(RUNS)/tables/*/*/*/1.0.1.json) --out $(RUNS)/verdict.html
	$(BIN)/python benchmarks/wall_clock.py $(WORLD) $(RUNS)/traces.parquet --part 2/2 \
		--table $$(echo $(RUNS)/tables/*/*/*/1.0.1.json) --prompts $(PROMPTS) \
		--workload mixed --out $(RUNS)/wall_clock.json

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

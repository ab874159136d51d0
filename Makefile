# For a newcomer: `make verdict`, `make demo` and `make test`. All set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyPI's own Linux build of torch brings gigabytes of CUDA; without a GPU, take the
# build for CPUs.
TORCH_INDEX := $(shell nvidia-smi -L >/dev/null 2>&1 || \
	echo --extra-index-url https://download.pytorch.org/whl/cpu)
DEMO_MINUTES ?= 10

WORLD := examples/small_world/stdlib
RUNS := runs/world
RESULTS := runs/results
PROMPTS := 16

# SGLang on a machine without a GPU; another version takes another environment:
# make test-sglang SGLANG=0.5.20 VENV_SGLANG=.venv-sglang-0.5.20
SGLANG ?= 0.5.23
VENV_SGLANG ?= .venv-sglang
SGLANG_CPU := tests/sglang
VENV_VLLM ?= .venv-vllm
TEST_SGLANG := OMP_NUM_THREADS=1 $(VENV_SGLANG)/bin/python -m pytest -rs tests/sglang \
	--numprocesses 2 --dist loadfile
PIP_SGLANG := $(BIN)/python -m pip --python $(VENV_SGLANG)/bin/python install \
	--quiet --no-compile

.PHONY: verdict demo demo-world results docs test test-world test-fleet \
	test-sglang test-sglang-quick test-sglang-server sglang-wheels test-vllm test-engines \
	test-browser nightly lint wheel-test clean

# What nobody here has measured: an H200, estimated from public rows. Its break-evens stand
# beside what others served; no sweep, no download.
verdict: $(VENV)/ready
	$(BIN)/evict-profile advise --model qwen3-30b-a3b --gpu h200 --engine sglang --tp 4 \
		--accept examples/specbundle-qwen3-30b-a3b.yaml --batch 8

demo: $(VENV)/ready
	$(BIN)/evict-profile sweep qwen3-30b-a3b --plan demo \
		--max-minutes $(DEMO_MINUTES)

# Trained weights, real text, real clocks: costs, traces, the verdict, and at the end the
# engine's own time, beside what the replay says. What is calibrated on one half of the
# prompts is judged on the other.
demo-world: $(VENV)/ready
	rm -rf $(RUNS)/tables
	$(BIN)/evict-profile sweep $(WORLD)/model.yaml --plan examples/small_world/sweep.yaml \
		--out $(RUNS)/sweep --tables $(RUNS)/tables --max-minutes 4
	$(BIN)/python -m examples.small_world trace $(WORLD) --out $(RUNS)/traces \
		--prompts $(PROMPTS) --tokens 48 --batch 1 --batch 4
	$(BIN)/evict-profile calibrate $(RUNS)/tables/*/*/*/1.0.0.json $(RUNS)/traces --part 1/2
	$(BIN)/evict-profile replay $(RUNS)/tables/*/*/*/1.0.1.json $(RUNS)/traces \
		--part 2/2 --batch 1 --batch 4 --out $(RUNS)/verdict.html
	$(BIN)/python -m examples.small_world clock $(RUNS)/tables/*/*/*/1.0.1.json \
		$(WORLD) $(RUNS)/traces --part 2/2 --prompts $(PROMPTS) \
		--workload mixed --batch 1 --batch 4 --out $(RUNS)/wall_clock.json

# Tests share nothing but read-only files, so a process a core runs them side by side,
# each with one thread. A process holds about 1 GB.
test: $(VENV)/ready lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical \
		--maxprocesses 4 --dist worksteal -m "not world and not browser"

# The slow part of the tests of examples/small_world: training, the runner, a kill.
test-world: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/examples -m world

# The fleet on Ray, with a worker and a driver that are killed. It puts Ray into .venv.
test-fleet: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable ".[fleet]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/fleet

# Pages in Chromium, which must be installed: sliders, keys, narrow windows, no network.
test-browser: docs
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	$(BIN)/python -m pytest -rs tests/browser

# EVICT's claims beside fixed trees, judged on recordings of the small world. What lacks
# is recorded first, which takes most of the time.
results: $(VENV)/ready
	$(BIN)/python -m examples.small_world trace $(WORLD) --out $(RESULTS)/moe \
		--prompts 24 --temperature 0 --temperature 1
	$(BIN)/python -m benchmarks.claims --recordings $(RESULTS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, with the page of commands and the one of all tables made anew. It
# fails for a link that leads nowhere, a request to another site, and a formula with a
# word that MathML lacks.
docs: $(VENV)/ready
	$(BIN)/python docs/write_cli.py
	$(BIN)/evict-profile report cost_tables --out docs/explore.html
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean
	! grep -rnoE build/site --include=*.html --include=*.css \
		-e '<(script|img|iframe|link)[^>]* (src|href)="?(https?:)?//[^ >]*' \
		-e 'url\(.?(https?:)?//[^)]*' -e '<m[io]>\\[a-z]*'

# Installs the wheel by itself, away from the checkout: a profile, and one measured cell.
wheel-test: $(VENV)/ready
	bash tests/wheel_smoke.sh $(BIN)/python

# The plug-in in SGLang's real engine. CI runs the quick part. Starting an engine is most
# of it, so a file stays in one process and what its fixtures started is started once.
test-sglang: $(VENV_SGLANG)/ready sglang-wheels
	$(TEST_SGLANG) $(wildcard tests/benchmarks/test_sglang_*.py) \
		tests/config/test_parameters.py

test-sglang-quick: $(VENV_SGLANG)/ready sglang-wheels
	$(TEST_SGLANG) -m "not slow"

# Sources that the plug-in's hooks are held against, 30 MB a version. Nightly adds the
# newest on the index: make sglang-wheels WHEELS=sglang
WHEELS ?= $(foreach version,20 21 22 23,sglang==0.5.$(version))
sglang-wheels: $(VENV)/ready
	for wheel in $(WHEELS); do \
		ls build/wheels/$${wheel%%=*}-$${wheel##*=}-*.whl >/dev/null 2>&1 || \
		$(BIN)/python -m pip download --quiet --no-deps --dest build/wheels $$wheel || \
		echo "no sources of $$wheel: its tests will be skipped"; \
	done

# A layer over .venv: what SGLang shares with it, torch above all, is there already, and
# what SGLang pins differently lies on top. The second .pth line starts the stubs of
# GPU kernels in every process of this environment.
$(VENV_SGLANG)/ready: $(VENV)/ready $(SGLANG_CPU)/requirements.txt \
		$(SGLANG_CPU)/pins/$(SGLANG).txt tests/engines/sglang.txt
	$(PYTHON) -m venv --clear --without-pip $(VENV_SGLANG)
	base=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	cd $$(echo $(VENV_SGLANG)/lib/python3*/site-packages) && \
	echo "import site; site.addsitedir('$$base')" > base.pth && \
	printf '%s\nimport sglang_on_cpu\n' $(CURDIR)/$(SGLANG_CPU)/stubs \
		> sglang_on_cpu.pth
	$(PIP_SGLANG) --retries 1 $(TORCH_INDEX) \
		$$(grep ^torch== $(SGLANG_CPU)/pins/$(SGLANG).txt)
	$(PIP_SGLANG) --no-deps --requirement $(SGLANG_CPU)/pins/$(SGLANG).txt \
		--requirement $(SGLANG_CPU)/requirements.txt \
		--requirement tests/engines/sglang.txt
	touch $@

# vLLM's config, routers and budget on a CPU, as a layer over .venv likewise.
test-vllm: $(VENV_VLLM)/ready
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -rs tests/vllm

$(VENV_VLLM)/ready: $(VENV)/ready tests/vllm/requirements.txt
	$(PYTHON) -m venv --clear --without-pip $(VENV_VLLM)
	base=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	cd $$(echo $(VENV_VLLM)/lib/python3*/site-packages) && \
	echo "import site; site.addsitedir('$$base')" > base.pth
	$(BIN)/python -m pip --python $(VENV_VLLM)/bin/python install --quiet --no-compile \
		--no-deps --requirement tests/vllm/requirements.txt
	touch $@

# Real servers of SGLang, vLLM and llama.cpp: probed, made a table of, and started again
# as advised. What a server imports beside its engine is in its environment. The
# first two are asked for the same replies, which lie in build/engines.
test-engines: $(VENV_SGLANG)/ready $(VENV_VLLM)/ready
	rm -rf build/engines
	$(MAKE) test-sglang-server
	$(BIN)/python -m pip --python $(VENV_VLLM)/bin/python install --quiet --no-compile \
		--no-deps --requirement tests/engines/vllm.txt
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -rs tests/engines/test_vllm.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/engines/test_llama.py

test-sglang-server: $(VENV_SGLANG)/ready
	OMP_NUM_THREADS=1 $(VENV_SGLANG)/bin/python -m pytest -rs tests/engines/test_sglang.py

# What takes too long for CI: all of SGLang's tests on the newest and the oldest version,
# its hooks against the newest on the index, real servers, the fleet on Ray, and
# the promises of benchmarks that need no device and no download. Each exits 1 where its promise is
# missed.
nightly: test-engines test-fleet test-world test-browser
	mkdir -p build
	$(MAKE) sglang-wheels WHEELS=sglang
	$(MAKE) test-sglang
	$(MAKE) test-sglang test-sglang-server SGLANG=0.5.20 \
		VENV_SGLANG=.venv-sglang-0.5.20
	$(BIN)/python -m benchmarks.known_truths intervals --sweeps 8 --out build/truths.json
	$(BIN)/python -m benchmarks.known_truths gates --sweeps 20 --out build/gates.json
	$(BIN)/python -m benchmarks.known_truths rechecks --sweeps 24 --out build/rechecks.json
	$(BIN)/python -m benchmarks.learning --out build/learning.json
	$(BIN)/python -m benchmarks.fewer_levels --out build/fewer_levels.json
	$(VENV_VLLM)/bin/python benchmarks/decision_time.py --out build/decision_time.json
	$(BIN)/python -m benchmarks.known_acceptance --trials 20 --prompts 16 \
		--out build/acceptance.json
	$(BIN)/python -m benchmarks.served
	$(BIN)/python -m tests.lossless.proof
	git diff --exit-code evict_profile/lossless

$(VENV)/ready: constraints.txt pyproject.toml hatch_build.py \
		evict_profile/runtime/_scan.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --retries 1 --constraint constraints.txt \
		$(TORCH_INDEX) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--group dev --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VENV_SGLANG) $(VENV_VLLM) dist build

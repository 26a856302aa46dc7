# Needs Python 3.11 or newer, git and make; everything else goes into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Two workers share the machine: one torch thread each keeps them from slowing each other down.
export OMP_NUM_THREADS := 1
# Where bytecode is not kept, each of the hundreds of processes that tests start compiles torch's modules again: 4 s.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-cuda test-ray test-slow lint docs datasets bench clean

demo: $(VENV)/.demo  ## train from logged data, evaluate, plot, export
	$(BIN)/python examples/cartpole_from_logs.py --out birl_demo

test: $(VENV)/.dev  ## all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q

test-slow: $(VENV)/.dev  ## all variants and seeds, learning runs of minutes
	$(BIN)/python -m pytest -n 2 -q -m slow

test-cuda: $(VENV)/.dev  ## the contract, recordings and many seeds on a GPU; needs one, and a torch that finds it
	$(BIN)/python -m pytest -n auto --maxprocesses 12 -q tests/cuda

test-ray: $(VENV)/.ray  ## collectors that Ray places, in one cluster on this machine; fails if a process is left
	PYTHONPATH=tests:tests/ray $(BIN)/python -m pytest -q -s tests/ray

lint: $(VENV)/.dev  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## the documentation as a site in site/
	$(BIN)/python -m mkdocs build --strict

datasets: $(VENV)/.dev  ## collect the shipped datasets again
	$(BIN)/python scripts/collect_datasets.py

bench: $(VENV)/.bench  ## speed next to the peers, in one run; BENCH='--only online --rounds 3' for a part of it
	$(BIN)/python -m benchmarks $(BENCH)

# Stamp files make later runs quick. torch comes first, pinned, so that nothing else chooses its version.
$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit("birl needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile torch==2.13.0
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --no-compile -e '.[envs,onnx,plot]'
	touch $@

$(VENV)/.bench: $(VENV)/.torch pyproject.toml
	$(PIP) --no-compile -e '.[envs,plot]' 'gymnasium[mujoco]>=1.1'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --no-compile -e '.[dev]'
	touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) --no-compile -e '.[ray]'
	touch $@

clean:
	rm -rf $(VENV) birl_demo birl_logs

# One set of targets for people and CI. `make help` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PACKAGES := engine fairness gateway kernels migrations tenancy
SOURCES := $(PACKAGES) tests benchmarks hatch_build.py
PIP := $(BIN)/pip --disable-pip-version-check --quiet

# Compute threads sleep instead of spinning while they wait: they share these cores with everybody.
export OMP_WAIT_POLICY := passive

# The libraries of CPU kernels: the one of them that is written last.
NATIVE := kernels/cpu/native/libevenhand-plain.so

.PHONY: help venv native serve test check prove bench bench-peers format lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(INSTALLED) $(NATIVE) ## .venv with everything, what the tests need included

# The lock is hashed and holds no torch: its build differs by platform and CUDA builds of it pin
# their own triton. So: the lock, torch by its pin, triton only where torch brought none.
$(INSTALLED): requirements.lock pyproject.toml hatch_build.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Evenhand needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "Installing into $(VENV): about 3 GB, the tools of the tests included. It takes minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install torch==2.13.0
	$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install triton==3.9.0
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

native: $(NATIVE) ## compile the CPU kernels, where their sources changed

# Without a compiler engines on a CPU still run, slowly.
$(NATIVE): $(wildcard kernels/cpu/native/*.[ch]) kernels/cpu/build.py | $(INSTALLED)
	@if command -v $(firstword $(CC)) >/dev/null; then $(BIN)/python -m kernels.cpu.build; \
	else echo "No C compiler ($(CC)): the CPU kernels are not compiled, engines will be slow."; fi

serve: $(INSTALLED) $(NATIVE) ## gateway, engine and a real small model on this machine
	@$(BIN)/evenhand serve

test: $(INSTALLED) $(NATIVE) ## the tests, with the services they need
	$(BIN)/python -m pytest -m "not prove"

check: $(INSTALLED) $(NATIVE) ## format, lint, types, imports
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

prove: $(INSTALLED) $(NATIVE) ## the long and the timed claims; each prints its figure as JSON
	$(BIN)/python -m pytest -m prove -s --timeout 3600 tests

bench: $(INSTALLED) $(NATIVE) ## speed, as JSON: run it on an idle machine
	$(BIN)/python -m benchmarks

# Other engines to measure beside: in an environment of their own, so that the lock stays ours.
bench-peers: ## install llama.cpp's server and OpenVINO GenAI beside it, for `make bench`
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip --disable-pip-version-check --quiet install \
	  xllamacpp==2026.10.11549 openvino==2026.4.1 openvino-genai==2026.4.1.0 \
	  openvino-tokenizers==2026.4.1.0

gpu-check: $(INSTALLED) ## on a machine with a GPU: is it right, and how fast; at most 8 minutes
	$(BIN)/python -m benchmarks.gpu_check

format: $(INSTALLED) ## rewrite the sources in the house style
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix-only $(SOURCES)

lock: $(INSTALLED) ## compile requirements.lock from pyproject.toml
	$(BIN)/uv pip compile --universal --python-version 3.11 pyproject.toml \
	  --group dev --group torch-needs --no-emit-package torch --no-emit-package triton \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --output-file requirements.lock

clean: ## remove what the targets made here
	rm -rf kernels/cpu/native/*.so
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# make demo: the main job on a fresh machine. make test: the fast tests. Each sets up all it needs.
# ARGS goes to pytest: make test ARGS=tests/store, make test-slow ARGS="--slice 0/30".
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-avx2 browser lint site clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[$(RUNTIME),rtx,torch,examples]'
	touch $@

$(VENV)/.dev: $(VENV)/.run-$(RUNTIME)
	$(PIP) -e '.[$(RUNTIME),rtx,torch,hf,ray,remote,sign,examples,dev]'
	touch $@

demo: $(VENV)/.run-$(RUNTIME)
	$(BIN)/optkit build --recipe house-numbers --target l4,cpu --precision int8
	@echo "report: artifacts/house-numbers-fleet/report.html"

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow $(ARGS)

test-avx2: $(VENV)/.dev  # the fast tests where CPUID says AVX2; needs gcc and binutils
	$(BIN)/python -m tests.avx2.environment build/avx2
	build/avx2/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

browser:  # a slow test opens the reports in one; it is skipped where there is none
	apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium-headless-shell

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python lint/house.py

site: $(VENV)/.run-$(RUNTIME)  # the docs as a site
	$(PIP) -e '.[docs]'
	$(BIN)/python site/pages.py build/site/pages
	$(BIN)/zensical build --strict
	@echo "site: build/site/html/index.html; to read it: $(BIN)/zensical serve"

clean:
	rm -rf $(VENV) artifacts build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

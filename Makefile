PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
STAMP  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
MODELS := $(VENV)/.models
JOBS   ?= 2

.PHONY: help setup demo test test-slow mutants bench bench-methods lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt src/saltflat/privacy/box_muller.c
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (a minute or two, once)"
	@$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@$(PIP) --editable '.[dev,report]'
	@touch $@

$(PEERS): $(STAMP)
	@$(PIP) --editable '.[bench]'
	@touch $@

$(MODELS): $(STAMP)
	@$(PIP) --editable '.[models,federated]'
	@touch $@

setup: $(STAMP) ## create .venv with everything that tests and demo need

demo: $(STAMP) ## train on embedded digits with DP-SAT and DP-SGD at epsilon 3, and report on both
	@$(BIN)/saltflat demo

test: $(STAMP) ## lint, types, and every test that is not slow (under 12 minutes on two cores)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) -m 'not slow'

test-slow: $(MODELS) $(PEERS) ## the long suites, with models of timm, transformers and peft, Flower, and beside other libraries
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --dist worksteal -m slow

mutants: $(STAMP) ## seed privacy bugs one by one: each must be killed by the test that it names (ARGS=--clean 20: no bug)
	@$(BIN)/python tests/mutants/run.py --jobs $(JOBS) $(ARGS)

bench: $(PEERS) ## one private step against plain SGD and Opacus, on twelve models; and what the checks cost
	@$(BIN)/python benchmarks/step.py $(ARGS)
	@$(BIN)/python benchmarks/checks.py $(filter --quick,$(ARGS))

bench-methods: $(STAMP) ## a step of every method against one of DP-SGD (forty minutes; ARGS=--quick: a minute or two)
	@$(BIN)/python benchmarks/methods.py $(ARGS)

lint: $(STAMP) ## style and types only
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(STAMP) ## rewrite the sources in the house style
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis src/*.egg-info src/saltflat/privacy/_box_muller.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

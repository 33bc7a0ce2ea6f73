# Every target works in .venv, which is built inside this checkout from requirements/.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce figures test cluster-demo gpu pythons lint env horovod clean clean-results

# Nothing that is left on the machine may change what runs.
export PYTHONNOUSERSITE := 1
export PIP_USER := 0
unexport PYTHONPATH PYTHONHOME

BIN := .venv/bin
SETS := analysis train notebooks test
# The other one is for machines whose driver stops at CUDA 11: docs/loaders.md.
DALI ?= cuda130
DALIS := cuda130 cuda110
$(if $(filter $(DALI),$(DALIS)),,$(error DALI = $(DALI): choose one of: $(DALIS)))
PINS := $(SETS:%=requirements/%.txt) requirements/constraints.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-compile
PYTEST := $(BIN)/python -m pytest
NUMERIC = $(shell grep -rl mark.numeric tests --include='test_*.py') # importing all would take longer
AT_ONCE := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PIP_LOG := .venv/pip.log
HOROVOD_LOG := .venv/horovod.log

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

reproduce: env ## make sample images, run the laptop study (only what is not done yet), draw the figures
	$(BIN)/ddl data sample
	$(BIN)/ddl study resume studies/laptop.yaml
	$(BIN)/ddl figures
	$(BIN)/ddl figures --results "$${DDL_RESULTS:-results}"
	@echo
	@$(BIN)/ddl study compare studies/laptop.yaml
	@$(BIN)/ddl study status studies/laptop.yaml | grep "^same weights" || true
	@echo "Done. Look at:"
	@echo "  figures/            the published runs beside the paper's numbers, a folder for each study"
	@echo "  $${DDL_RESULTS:-results}/figures/    figures of this machine's runs"
	@echo "  $${DDL_RESULTS:-results}/tables/     this machine's numbers"
	@echo "  $${DDL_RESULTS:-results}/runs/laptop/*/run.ipynb    the lab book of each run"

figures: env ## redraw figures/ from data/ (measures nothing)
	$(BIN)/ddl figures

test: env ## run all tests, on up to four cores; those that compare numbers on less of a processor too
	@bash requirements/slurm.sh || echo "going on: the tests on a real SLURM are skipped (in CI they fail)"
	@bash requirements/browser.sh || echo "going on: the tests in a browser are skipped (in CI they fail)"
	@# Whatever comes out of one round, all are made. Tests spend much of their time waiting (for
	@# ranks, a scheduler, a hang to be noticed), so several run at once; then those that measure time.
	@status=0; \
	$(PYTEST) -m "not alone" $(AT_ONCE) --durations=25 || status=1; \
	for most in AVX2:avx2 SSE41:default; do \
	  echo "== again, with the instruction set $$most"; \
	  ONEDNN_MAX_CPU_ISA=$${most%:*} ATEN_CPU_CAPABILITY=$${most#*:} \
	    $(PYTEST) -m numeric $(AT_ONCE) $(NUMERIC) || status=1; \
	done; \
	$(PYTEST) -m alone || status=1; exit $$status

cluster-demo: env ## run a study through a real SLURM of 4 emulated nodes on this machine, draw it
	@bash requirements/slurm.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m ddl_core.launch.slurm.emulated slurm/local/demo.sh

gpu: $(if $(PYTHON),,env) ## what only a GPU can show, in half an hour; PYTHON=python3: not in .venv
	$(or $(PYTHON),$(BIN)/python) -m benchmarks.gpu $(GPU)

pythons: ## try the other Pythons of this machine: pins, and the tests that need no torch
	@bash requirements/pythons.sh build/pythons

lint: env ## check style, types, layers, and that notebooks carry no outputs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(if $(wildcard notebooks/*.ipynb),$(BIN)/nbstripout --verify notebooks/*.ipynb)

env: .venv/.project .venv/.dali-$(DALI) .venv/.horovod ## build .venv; DALI=cuda110 for CUDA 11 drivers

# The stamp holds this folder's name: an environment does not survive being moved.
ifneq ($(shell test -x $(BIN)/python && cat .venv/.packages 2>/dev/null),$(CURDIR))
.PHONY: .venv/.packages
endif
.venv/.packages: $(PINS)
	@python=$$(DALI=$(DALI) bash requirements/bootstrap.sh) || exit 1; \
	echo "building .venv with $$python: some minutes, once"; \
	echo "(1.5 GB; progress is in $(PIP_LOG))"; \
	rm -rf .venv && "$$python" -m venv .venv || exit 1; \
	$(BIN)/python requirements/torch_cost.py || true; \
	$(PIP) -c requirements/constraints.txt $(SETS:%=-r requirements/%.txt) >$(PIP_LOG) 2>&1 || { \
	  grep -v ^WARNING $(PIP_LOG) | tail -n 20; \
	  echo "error: pip could not install the pinned packages; all of its output: $(PIP_LOG)"; exit 1; }
	@# On all cores, which pip does not do; else every start of every rank would compile torch
	@# again where PYTHONDONTWRITEBYTECODE is set. Templates that are no Python fail, rightly.
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >>$(PIP_LOG) 2>&1 || true
	@echo "$(CURDIR)" >$@

.venv/.project: .venv/.packages pyproject.toml
	@$(PIP) --no-deps --editable . >>$(PIP_LOG) 2>&1 || { \
	  grep -v ^WARNING $(PIP_LOG) | tail -n 20; \
	  echo "error: pip could not install this project; all of its output: $(PIP_LOG)"; exit 1; }
	@touch $@

# The packages cannot share an environment, so the one that is there goes.
.venv/.dali-$(DALI): .venv/.packages requirements/dali_$(DALI).txt
	@[ $(DALI) != cuda110 ] || $(BIN)/python -c 'import sys; sys.exit(sys.version_info > (3, 13))' || { \
	  echo "error: DALI for CUDA 11 needs Python 3.11 or 3.12, and .venv has a later one; run:"; \
	  echo "  rm -r .venv && make env DALI=cuda110"; exit 1; }
	@echo "installing DALI for $(DALI): 600 to 900 MB"
	@rm -f .venv/.dali-*
	@$(BIN)/python -m pip uninstall --yes $(DALIS:%=nvidia-dali-%) >>$(PIP_LOG) 2>&1 || true
	@$(PIP) -c requirements/constraints.txt -r requirements/dali_$(DALI).txt >>$(PIP_LOG) 2>&1 || { \
	  grep -v ^WARNING $(PIP_LOG) | tail -n 20; \
	  echo "error: pip could not install DALI; all of its output: $(PIP_LOG)"; exit 1; }
	@touch $@

# Without Horovod everything else works, so a failure is told and not repeated.
.venv/.horovod: .venv/.packages $(wildcard requirements/horovod/*)
	@$(MAKE) --no-print-directory horovod || \
	  echo "going on: only strategy 'horovod' is missing; to try again, run: make horovod"
	@touch $@

horovod: .venv/.packages ## build Horovod for this torch, as env does; docs/installing_horovod.md: with MPI, NCCL
	@echo "building Horovod: some minutes, once (progress is in $(HOROVOD_LOG))"
	@bash requirements/horovod/build.sh $(BIN)/python build/horovod >$(HOROVOD_LOG) 2>&1 || { \
	  grep -A 9 '^Horovod was not built' $(HOROVOD_LOG) || tail -n 20 $(HOROVOD_LOG); \
	  echo "error: all of the output: $(HOROVOD_LOG)"; exit 1; }

clean: ## delete .venv and caches, keep results/
	rm -rf .venv build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .coverage .coverage.* htmlcov
	find . -name __pycache__ -prune -exec rm -rf {} +

clean-results: ## delete results/: everything that this machine measured
	rm -rf results

# Every target works in .venv, which is built inside this checkout from requirements/. The libraries
# beside torch have an environment each, .venv-tensorflow and so on, which no other target needs.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce figures docs reference cluster-demo image-files gpu pythons lint env horovod hashes clean clean-results
.PHONY: release-check
.PHONY: test test-fast test-all instruction-sets
.PHONY: libraries tensorflow keras mxnet

# Nothing that is left on the machine may change what runs.
export PYTHONNOUSERSITE := 1
export PIP_USER := 0
unexport PYTHONPATH PYTHONHOME
unexport PYTHONDONTWRITEBYTECODE # every process would compile the project again

BIN := .venv/bin
SETS := analysis train notebooks export docs test
# As the driver here wants it, unless it is named: docs/reference/loaders.md.
ifndef DALI
DALI := $(shell bash requirements/dali.sh)
endif
DALIS := cuda130 cuda120 cuda110
$(if $(filter $(DALI),$(DALIS)),,$(error DALI = $(DALI): choose one of: $(DALIS)))
PINS := $(SETS:%=requirements/%.txt) requirements/constraints.txt requirements/hashes/constraints.txt
LIBRARIES := tensorflow keras mxnet
PIP_INSTALL := -m pip install --disable-pip-version-check --no-input --no-compile
PIP := $(BIN)/python $(PIP_INSTALL)
# Packages are those of the pins, file by file. HASHES=no: for an index that serves builds of its own.
HASHES ?= yes
CHECKED := $(if $(filter no,$(HASHES)),-r requirements/,--require-hashes -r requirements/hashes/)
# An index for torch, used alone (docs/how-to/check-a-machine.md); without one, that of pip.
TORCH_INDEX ?=
TORCH := $(shell sed -n 's/^\(torch[a-z]*==[0-9.]*\).*/\1/p' requirements/train.txt)
ONLY_INDEX := $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS= PIP_INDEX_URL=$(TORCH_INDEX))
PYTEST := $(BIN)/python -m pytest
with_mark = $(shell grep -rl 'mark\.$(1)' tests --include='test_*.py')# importing all takes longer
AT_ONCE := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# The order of tests: the same number, the same order.
ifndef SEED
SEED := $(shell echo $$RANDOM)
endif
IN_ORDER := --randomly-seed=$(SEED)
# Of the tests that are marked extended, those below these files and folders run as well.
EXTENDED ?=
HEAVY := slow or multiprocess or notebook or slurm or browser or alone or extended
PIP_LOG := .venv/pip.log
# Wheels of Horovod outlive a clone: their names say all that they depend on.
WHEELS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddl/horovod

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
	@echo "  $${DDL_RESULTS:-results}/runs/laptop/*/run.ipynb    the executed notebook of each run"

figures: env ## redraw figures/ from data/ (measures nothing)
	$(BIN)/ddl figures

docs: env ## build the documentation and the executed notebooks as a site: build/site/index.html
	$(BIN)/python docs/build.py

reference: env ## write docs/reference/ from the code: commands, run fields, records
	$(BIN)/python -m ddl_tools.cli.reference

test: env ## run the tests of every change, in random order; SEED=N: in that of an earlier run
	@bash requirements/slurm.sh || echo "going on: the tests on a real SLURM are skipped (in CI they fail)"
	@bash requirements/browser.sh || echo "going on: the tests in a browser are skipped (in CI they fail)"
	@# Whatever comes out of one round, all are made. Tests spend much of their time waiting (for
	@# ranks, a scheduler, a hang to be noticed), so several run at once; then those that measure time.
	@status=0; \
	$(PYTEST) -m "not alone" --extended-in "$(EXTENDED)" $(AT_ONCE) $(IN_ORDER) --durations=25 || status=1; \
	$(PYTEST) -m alone --extended-in "$(EXTENDED)" $(IN_ORDER) $(call with_mark,alone) || status=1; \
	echo "the order of these tests: SEED=$(SEED)"; exit $$status

test-fast: env ## run the tests that need neither ranks nor a notebook nor patience: while you edit
	$(PYTEST) -m "not ($(HEAVY))" $(AT_ONCE) $(IN_ORDER)

test-all: libraries env ## run everything: extended cases, instruction sets, other Pythons
	@status=0; \
	$(MAKE) --no-print-directory test EXTENDED=tests SEED=$(SEED) || status=1; \
	$(MAKE) --no-print-directory instruction-sets SEED=$(SEED) || status=1; \
	$(MAKE) --no-print-directory pythons || status=1; exit $$status

instruction-sets: env ## run the tests that compare numbers again, on less of a processor
	@status=0; \
	for most in AVX2:avx2 SSE41:default; do \
	  echo "== again, with the instruction set $$most"; \
	  ONEDNN_MAX_CPU_ISA=$${most%:*} ATEN_CPU_CAPABILITY=$${most#*:} \
	    $(PYTEST) -m numeric $(AT_ONCE) $(IN_ORDER) $(call with_mark,numeric) || status=1; \
	done; exit $$status

cluster-demo: env ## run a study through a real SLURM of 4 emulated nodes on this machine, draw it
	@bash requirements/slurm.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m ddl_tools.emulation.local_slurm slurm/local/demo.sh

image-files: env ## write build/image/: definitions of a container for the ranks, of Apptainer and OCI
	@$(BIN)/python requirements/image.py build/image \
	  $(if $(TORCH_INDEX),--index $(TORCH_INDEX),--dali $(DALI))

gpu: $(if $(PYTHON),,env) ## what only a GPU can show, in half an hour; PYTHON=python3: not in .venv
	$(or $(PYTHON),$(BIN)/python) -m benchmarks.gpu $(GPU)

pythons: ## try the other Pythons here (PYTHONS=newest: one): pins, and the tests without torch
	@bash requirements/pythons.sh build/pythons $(PYTHONS)

lint: env ## check style, types, layers, and that notebooks carry no outputs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(if $(wildcard notebooks/*.ipynb),$(BIN)/nbstripout --verify notebooks/*.ipynb)

release-check: env ## refuse a release with a placeholder, or with versions that differ
	@$(BIN)/python .ci/release.py

env: .venv/.project .venv/.dali-$(DALI) .venv/.horovod ## build .venv; DALI=cuda120: for a driver that stops at CUDA 12
	@$(if $(filter env,$(MAKECMDGOALS)),echo "next: . .venv/bin/activate && ddl data sample",:)

# A stamp holds this folder's name: an environment does not survive being moved.
.PHONY: $(shell for one in .venv $(LIBRARIES:%=.venv-%); do \
  test -x $$one/bin/python && [ "$$(cat $$one/.packages 2>/dev/null)" = "$(CURDIR)" ] || \
  echo $$one/.packages; done)

# What follows makes the environment of the stamp at hand. 1: the target that asks, 2: its size
define new_environment
@python=$$(DALI=$(DALI) bash requirements/bootstrap.sh $(1)) || exit 1; \
  echo "building $(@D) with $$python: some minutes, once"; \
  echo "($(2); progress is in $(@D)/pip.log)"; \
  rm -rf $(@D) && "$$python" -m venv $(@D)
endef

# 1: what pip is to install, 2: variables
define install
$(2) $(@D)/bin/python $(PIP_INSTALL) $(1) >>$(@D)/pip.log 2>&1 || { \
  grep -v ^WARNING $(@D)/pip.log | tail -n 20; \
  echo "error: pip could not install the pinned packages; all of its output: $(@D)/pip.log"; exit 1; }
endef

# On all cores, which pip does not do; else every start of every rank would compile torch again
# where PYTHONDONTWRITEBYTECODE is set. Templates that are no Python fail, rightly.
COMPILE = { $(@D)/bin/python -m compileall -q -j 0 -x 'site-packages/.*/tests?/' $(@D)/lib || true; } >>$(@D)/compile.log 2>&1

define compile_packages
@$(COMPILE)
@echo "$(CURDIR)" >$@
endef

# 1: the environment, 2: the library in it
define build_horovod
echo "building Horovod in $(1): some minutes, once (progress is in $(1)/horovod.log)"; \
bash requirements/horovod/build.sh $(1)/bin/python "$(WHEELS)" $(2) >$(1)/horovod.log 2>&1 || { \
  grep -A 9 '^Horovod was not built' $(1)/horovod.log || tail -n 20 $(1)/horovod.log; \
  echo "error: all of the output: $(1)/horovod.log"; false; }
endef

# The files name every package, so nothing is resolved but what torch brings along. What is built from
# source is built with the setuptools that was checked. Horovod's compiler works while Python's does;
# where Horovod's fails, the target .horovod tries again and shows the error.
.venv/.packages: $(PINS)
	$(call new_environment,env,its size: docs/reference/costs.md)
	@$(ONLY_INDEX) $(BIN)/python requirements/torch_cost.py || true
	@$(call install,--no-deps $(CHECKED)horovod/build.txt)
	@$(call install,--no-deps --no-build-isolation --use-pep517 $(CHECKED)constraints.txt)
	@$(call install,$(TORCH),$(ONLY_INDEX))
	@bash requirements/horovod/build.sh $(BIN)/python "$(WHEELS)" torch wheel \
	  >.venv/wheel.log 2>&1 & \
	$(COMPILE); wait
	@echo "$(CURDIR)" >$@

.venv/.project: .venv/.packages pyproject.toml
	@$(PIP) --no-deps --no-build-isolation --editable . >>$(PIP_LOG) 2>&1 || { \
	  grep -v ^WARNING $(PIP_LOG) | tail -n 20; \
	  echo "error: pip could not install this project; all of its output: $(PIP_LOG)"; exit 1; }
	@touch $@

# The packages cannot share an environment, so the one that is there goes.
.venv/.dali-$(DALI): .venv/.packages requirements/hashes/dali_$(DALI).txt
	@[ $(DALI) != cuda110 ] || $(BIN)/python -c 'import sys; sys.exit(sys.version_info > (3, 13))' || { \
	  echo "error: DALI for CUDA 11 needs Python 3.11 or 3.12, and .venv has a later one; run:"; \
	  echo "  rm -r .venv && make env DALI=cuda110"; exit 1; }
	@echo "installing DALI for $(DALI)"
	@rm -f .venv/.dali-*
	@$(BIN)/python -m pip uninstall --yes $(DALIS:%=nvidia-dali-%) >>$(PIP_LOG) 2>&1 || true
	@$(PIP) --no-deps $(CHECKED)dali_$(DALI).txt >>$(PIP_LOG) 2>&1 || { \
	  grep -v ^WARNING $(PIP_LOG) | tail -n 20; \
	  echo "error: pip could not install DALI; all of its output: $(PIP_LOG)"; exit 1; }
	@touch $@

# Without Horovod everything else works, so a failure is told and not repeated.
.venv/.horovod: .venv/.packages $(wildcard requirements/horovod/*)
	@$(MAKE) --no-print-directory horovod || \
	  echo "going on: only strategy 'horovod' is missing; to try again, run: make horovod"
	@touch $@

horovod: .venv/.packages ## build Horovod for this torch, as env does; docs/how-to/install-horovod.md: with MPI, NCCL
	@$(call build_horovod,.venv,torch)

libraries: $(LIBRARIES) ## build the environments of the libraries beside torch, each as a target of its own

tensorflow: .venv-tensorflow/.packages .venv-tensorflow/.horovod ## build .venv-tensorflow, with Horovod

keras: .venv-keras/.packages ## build .venv-keras: Keras on JAX

mxnet: .venv-mxnet/.packages .venv-mxnet/.horovod ## build .venv-mxnet, with Horovod

$(LIBRARIES:%=.venv-%/.packages): .venv-%/.packages: requirements/hashes/libraries/%.txt
	$(call new_environment,$*,0.4 to 1.4 GB)
	@$(call install,--no-deps $(CHECKED)libraries/$*.txt)
	$(compile_packages)

# As in .venv, all else works without it; the next call tries again.
.venv-tensorflow/.horovod .venv-mxnet/.horovod: .venv-%/.horovod: .venv-%/.packages \
  $(wildcard requirements/horovod/*)
	@{ $(call build_horovod,$(@D),$*); } && touch $@ || \
	  echo "going on: only strategy 'horovod' of library '$*' is missing; to try again, run: make $*"

hashes: ## write requirements/hashes/ again, after a change of pinned versions
	@bash requirements/hashes.sh "$(CURDIR)/build/uv"

clean: ## delete the environments and caches, keep results/
	rm -rf .venv $(LIBRARIES:%=.venv-%) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .coverage .coverage.* htmlcov
	find . -name __pycache__ -prune -exec rm -rf {} +

clean-results: ## delete results/: everything that this machine measured
	rm -rf results

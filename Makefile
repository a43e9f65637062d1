# The commands of this repository; `make` alone lists them. Nothing needs to be prepared but Python >= 3.11 and make.

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements-locked.txt
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint $(LOCK)

# make PYTHON=/path/to/python takes that one; otherwise the first of these that runs and is new enough.
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3)

# Options for a command, as in: make demo ARGS="--epochs 3"
ARGS ?=

# How many processes the tests run in: twice as many as there are cores, since many tests wait for something.
JOBS := $(shell python3 -c 'import os; print(os.cpu_count() * 2)')

.PHONY: help setup demo test test-extended test-torch test-lowest test-newest check fuzz chaos mutants properties bench docs dist audit format lock clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup    .venv with penstock, editable, and everything for working on it'
	@echo 'make demo     train the small model on 4 replicas, or go on with it (sets up what it needs first)'
	@echo 'make test     tests, doctests and examples of the documents'
	@echo 'make test-extended  the tests that take a second or more each, which make test skips'
	@echo 'make test-torch  the tests of ps.torch, with PyTorch in an environment of its own'
	@echo 'make test-lowest  all tests with the lowest versions of all packages that pyproject.toml allows'
	@echo 'make test-newest  all tests with the newest of all packages, whatever pyproject.toml says; PYTHON= names the newest Python'
	@echo 'make check    format, lint, types and the fast tests: run it before every commit'
	@echo 'make fuzz     messages of all types, and damaged bytes, for everything that reads those of others, FUZZ_SECONDS=60 for each'
	@echo 'make chaos    read through a data service while its processes are killed, replaced and cut off, at random'
	@echo 'make mutants  change one operator or number at a time: at most one change in twenty may pass the tests of its room'
	@echo 'make properties  the tests of properties with a thousand new examples each, where make test draws the same 25'
	@echo 'make bench    the table of benchmarks, as ratios to hand-written loops'
	@echo 'make docs     the documents and the reference of all names as a site in build/site'
	@echo 'make dist     wheel and sdist in build/dist, checked, and each installed in an environment of its own'
	@echo 'make audit    compare the versions in $(LOCK) with known vulnerabilities'
	@echo 'make format   put all files into the one format'
	@echo 'make lock     resolve the development dependencies again into $(LOCK)'
	@echo 'make clean    remove .venv, caches and what was built'
	@echo
	@echo 'PYTHON=...    the interpreter to use      ARGS="..."   options for demo, test, chaos, mutants and bench'

setup: $(VENV)/.with-dev
	@echo 'penstock is ready in $(VENV)'

demo: $(VENV)/.with-demo
	@$(BIN)/penstock demo $(ARGS)

test: $(VENV)/.with-dev
	@$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not long and not extended and not alone' $(ARGS)
	@$(BIN)/pytest -m 'alone and not long' $(ARGS) tests/service/test_security.py
	@$(BIN)/python tests/pytorch/left_out.py

test-extended: $(VENV)/.with-dev
	@$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'extended and not alone' $(ARGS)
	@$(BIN)/pytest -m 'extended and alone' $(ARGS) tests/report

# torch is large, and the other tests must pass without it: it has an environment of its own, with all other packages of
# $(VENV). Wheels without CUDA are tried first: 200 MB in place of 5 GB. The package index has none for Linux;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu in the environment names one that does.
TORCH_VERSION ?= 2.13.0
TRAINERS := accelerate==1.15.0 pytorch-lightning==2.6.6
TORCH := $(VENV)-torch
TORCH_INSTALL = $(TORCH)/bin/python -m pip install -qq --disable-pip-version-check --constraint $(LOCK)
PACKAGES_OF = "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
test-torch: $(TORCH)/.ready
	@$(TORCH)/bin/python -m pytest -m 'not long' $(ARGS) tests/pytorch \
		'tests/test_docs.py::test_examples_run_as_the_document_says[docs/pytorch.md]' \
		'tests/test_docs.py::test_examples_run_as_the_document_says[docs/training/small-gpt.md]'

$(TORCH)/.ready: $(VENV)/.with-dev
	@$(BIN)/python -m venv --clear $(TORCH)
	@echo "import site; site.addsitedir('"$(call PACKAGES_OF,$(VENV))"')" > $(call PACKAGES_OF,$(TORCH))/packages.pth
	@$(TORCH_INSTALL) torch==$(TORCH_VERSION)+cpu 2> /dev/null || $(TORCH_INSTALL) torch==$(TORCH_VERSION)
	@$(TORCH_INSTALL) $(TRAINERS)
	@touch $@

# The oldest Python and the oldest packages, in an environment of their own. What jaxlib
# 0.9.0 reads from its cache of compiled programs it complains of on stderr, which tests of several processes look at.
LOWEST := $(VENV)-lowest
test-lowest:
	@$(or $(PYTHON),python3.11) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python tests/lowest_versions.py > $(LOWEST)/constraints.txt
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check --constraint $(LOWEST)/constraints.txt hatchling editables
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		--no-build-isolation --editable '.[dev,cloud]'
	@JAX_ENABLE_COMPILATION_CACHE=false $(LOWEST)/bin/python -m pytest -n $(JOBS) \
		-m 'not long and not alone' $(ARGS)

# The newest of all packages, in an environment of its own, beyond the upper bounds of pyproject.toml: what a next
# version breaks shows here first. Left out are tests of memory, where Python 3.13 and NumPy 2.5 count an array that is
# enlarged in place twice.
NEWEST := $(VENV)-newest
NOT_ON_NEWEST = --deselect tests/data/test_streaming_shuffle.py::test_one_buffer_of_large_rows_is_in_memory \
	--deselect 'tests/data/test_memory.py::test_large_rows_are_held_as_far_as_operators_say[shuffle(32)]'
test-newest:
	@$(or $(PYTHON),python3.13) -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python tests/newest_packages.py dev cloud > $(NEWEST)/packages.txt
	@$(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check --requirement $(NEWEST)/packages.txt
	@$(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(NEWEST)/bin/python -m pip list --disable-pip-version-check --format freeze \
		| grep -E '^(jax|keras|numpy|orbax-checkpoint|pyarrow|ray)=='
	@echo 'left out:' $(NOT_ON_NEWEST)
	@$(NEWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not long and not extended and not alone' \
		$(NOT_ON_NEWEST) $(ARGS)

check: $(VENV)/.with-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not slow and not long and not extended and not alone'

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.with-dev
	@$(BIN)/python tests/service/fuzzing_live.py -max_total_time=$(FUZZ_SECONDS)
	@$(BIN)/python tests/service/fuzzing.py -max_total_time=$(FUZZ_SECONDS) $(ARGS)

chaos: $(VENV)/.with-dev
	@$(BIN)/python tests/chaos $(ARGS)
	@$(BIN)/pytest -m long
	@if [ -e $(TORCH)/.ready ]; then $(TORCH)/bin/python -m pytest -m long tests/pytorch; \
		else echo 'make test-torch first: trials of torchrun are left out without torch'; fi

mutants: $(VENV)/.with-dev
	@$(BIN)/python tests/mutants.py $(ARGS)

properties: $(VENV)/.with-dev
	@$(BIN)/pytest -n $(JOBS) --hypothesis-profile many -m hypothesis --timeout 3600 $(ARGS)

bench: $(VENV)/.with-dev
	@$(BIN)/python -m benchmarks $(ARGS)

# Strict: a broken link, a missing heading and a page that no menu leads to are errors.
docs: $(VENV)/.with-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo 'build/site is ready; with search, at http://localhost:8000: $(BIN)/python -m http.server --directory build/site'

# What a release is, built and tried: installed without anything else, each runs the README's example.
DIST := $(VENV)-dist
dist:
	@rm -rf build/dist
	@$(or $(PYTHON),python3.11) -m venv --clear $(DIST)
	@$(DIST)/bin/python -m pip install -qq --disable-pip-version-check build==1.6.1 twine==7.0.0
	@$(DIST)/bin/python -m build --outdir build/dist
	@$(DIST)/bin/python -m twine check --strict build/dist/*
	@for file in build/dist/*; do \
		$(DIST)/bin/python -m venv --clear $(DIST)/installed && \
		$(DIST)/installed/bin/python -m pip install -qq --disable-pip-version-check $$file && \
		$(DIST)/installed/bin/python -I tests/installed_package.py || exit 1; \
	done

AUDIT := $(VENV)-audit
audit:
	@$(or $(PYTHON),python3.11) -m venv --clear $(AUDIT)
	@$(AUDIT)/bin/python -m pip install -qq --disable-pip-version-check pip-audit==2.10.1
	@$(AUDIT)/bin/pip-audit --requirement $(LOCK) --no-deps --disable-pip $(ARGS)

format: $(VENV)/.with-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Each Python has versions of its own, since packages end their support of the oldest one: NumPy 2.5 needs Python 3.12.
LOCK_PYTHONS ?= python3.11 python3.12 python3.13
lock:
	@rm -rf $(VENV)-lock
	@for python in $(LOCK_PYTHONS); do \
		minor=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') && $$python -m venv $(VENV)-lock/$$minor && \
		$(VENV)-lock/$$minor/bin/python -m pip install -qq --disable-pip-version-check --dry-run \
			--report $(VENV)-lock/$$minor.json --editable '.[dev,docs]' hatchling editables || exit 1; \
	done
	@python3 tests/locked_versions.py $(VENV)-lock/*.json > $(LOCK)
	@rm -rf $(VENV)-lock
	@echo 'wrote $(LOCK)'

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-lowest $(VENV)-newest $(VENV)-torch $(DIST) $(AUDIT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra, so that a second call does nothing. hatchling is installed first, in its locked version, and builds without a download.
$(VENV)/.with-%: pyproject.toml $(LOCK)
	@$(MAKE) --no-print-directory $(VENV)/.works
	@echo 'installing penstock-data[$*] into $(VENV)'
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$*]'
	@touch $@

# An environment that is missing, half made or left behind by a Python that is gone is made anew.
.PHONY: $(VENV)/.works
$(VENV)/.works:
	@$(BIN)/python -m pip --version > /dev/null 2>&1 && exit 0; \
	for candidate in $(CANDIDATES); do \
		if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; then \
			echo "making $(VENV) with $$("$$candidate" -V)"; \
			exec "$$candidate" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo 'penstock needs Python 3.11 or newer, with the modules venv and ensurepip. Tried:' >&2; \
	for candidate in $(CANDIDATES); do \
		if "$$candidate" -V > /dev/null 2>&1; then \
			found=$$("$$candidate" -c 'import sys, venv, ensurepip; print("is", sys.version.split()[0])' 2>&1 | tail -1); \
		else \
			found='does not run'; \
		fi; \
		echo "  $$candidate: $$found" >&2; \
	done; \
	echo 'Install one (on Debian and Ubuntu also the package python3-venv), or name one: make PYTHON=/path/to/python' >&2; \
	exit 1

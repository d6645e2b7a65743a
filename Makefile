# Everything here needs only Python 3.10 or newer and pip; each target sets up what it needs in .venv, once.
#   make demo         the main job in a minute: a model to one native call, measured and tuned
#   make test         linters, types, and the quick tests: what has to be green before a commit
#   make test-full    also the slow tests, and many more random examples for each property
#   make lint         linters and types only
#   make format       rewrite the sources in the project's style
#   make goldens      write down again which schedules are chosen (tests/goldens): review the difference like code
#   make docs         the documentation as a site, in build/site
#   make native       the compiler's core as native code, in place: compiles are quicker; needs a C compiler
#   make pure         takes `make native` back
#   make wheel        dist/weft_compiler-*.whl, to install elsewhere
#   make bench        the operators against their peers (BENCH_ARGS="--json results.json")
#   make fuzz         random models, programs and files, FUZZ_MINUTES long; goes on where the last run ended (build/fuzz)
#   make clean        forget everything that was set up or built
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
JOBS ?= 2
BENCH_ARGS ?=
FUZZ_MINUTES ?= 10
FUZZ_JOBS ?= 2
FUZZ_KINDS ?=

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -qq
# The peers are compared with this very version; it comes first, so that nothing else chooses another.
TORCH := torch==2.13.0

.PHONY: demo test test-full lint format goldens docs native pure wheel bench fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	@$(RUN) -m weft.demo

test: lint
	@$(RUN) -m pytest -q -n $(JOBS)

test-full: lint
	@WEFT_TEST_FULL=1 $(RUN) -m pytest -q -n $(JOBS) -m "" --timeout 3600

lint: $(VENV)/.test
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --quiet --check . || { echo "make format puts this right"; exit 1; }
	@$(RUN) -m mypy --strict --no-error-summary weft

format: $(VENV)/.test
	@$(RUN) -m ruff check --quiet --fix .
	@$(RUN) -m ruff format --quiet .

goldens: $(VENV)/.test
	@$(RUN) -m tests.goldens

docs: $(VENV)/.core
	@$(RUN) -m tools.site

# Python prefers what this builds to the sources beside it: after a change, build again or `make pure`.
native: pure $(VENV)/.core
	@$(PIP) install --editable '.[native]'
	@WEFT_NATIVE=1 $(RUN) setup.py -q build_ext --inplace
	@rm -rf build

pure:
	@find weft -name '*.so' -delete
	@rm -f weft__mypyc*.so

wheel: $(VENV)/.python
	@rm -rf build dist
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@rm -rf build *.egg-info
	@ls dist/*.whl

bench: $(VENV)/.bench
	@$(RUN) -m benchmarks.operators $(BENCH_ARGS)

fuzz: $(VENV)/.test
	@$(RUN) -m tests.fuzz --minutes $(FUZZ_MINUTES) --jobs $(FUZZ_JOBS) --kinds "$(FUZZ_KINDS)"

clean:
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of packages; all of them are installed again when pyproject.toml changes.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Weft needs Python 3.10 or newer, and '$(PYTHON)' is not; choose another with PYTHON=..."; exit 1; }
	@echo "setting up $(VENV) (once)"
# Some systems ship Python without the part that puts pip into a new environment: then our own pip does it.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip -qq install --target \
	    "$$($(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip; }
	@touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.python
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.torch: $(VENV)/.python
	@echo "installing $(TORCH) (about 200 MB, once)"
	@$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.torch
	@$(PIP) install --editable '.[test,link]'
	@touch $(VENV)/.core $@

$(VENV)/.bench: pyproject.toml $(VENV)/.torch
	@$(PIP) install --editable '.[bench]'
	@touch $(VENV)/.core $@

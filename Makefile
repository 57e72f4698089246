# make repro     install, then train, measure and render the default set, five runs of AERO (SCALE=smoke: a quick test)
# make all       the same for every run of the papers; hours
# make parallel  measure parallel context encoding on a pretrained model, then render; up to three hours
# make report    install, then render the report from results/ and runs/
# make docs      write the generated numbers of README.md and docs/
# make example   install, then train one small model in under 3 minutes, for `aero ask` and `aero entropy`
# make keep      add the results in runs/ to results/, which git keeps
# make test      install, then run the tests; make slow and make nightly run the longer ones
# make bench     speed and memory against alternatives; about an hour on a quiet machine of 2 cores
PYTHON ?= python3.11
SCALE ?=
EXAMPLE := runs/example/seed_1337
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONHASHSEED := 0
# Where it is set, each of hundreds of processes would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: repro all parallel report example docs keep test slow nightly bench install lint lock
install: .venv/.installed

# uv if available, pip otherwise, with progress. The stamp is written last, so that a failed installation is repeated.
# The locks are complete, hence --no-deps. Of torch the CPU build is taken where the index has it; the CUDA build needs
# a second lock.
ifneq ($(shell command -v uv 2>/dev/null),)
VENV := uv venv -q --allow-existing --python $(PYTHON) .venv
INSTALL := uv pip install --python $(BIN)/python --no-deps
else
VENV := $(PYTHON) -m venv .venv
INSTALL := $(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off --no-deps
endif
PROGRESS := while read -r what name rest; do case $$what in \
  Collecting|Processing) n=$$((n + 1)); echo "$$n of $$(grep -c == requirements.lock): $${name\#\#*/}";; \
  Installing) echo "unpacking, 1 to 3 minutes";; esac; done

.venv/.installed: SHELL := /bin/bash -o pipefail
.venv/.installed: requirements.lock requirements-cuda.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "error: Python 3.11 is needed (SPU has no build for others) and '$(PYTHON)' is not one; install it or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into .venv; 3 to 7 minutes with pip"
	@$(VENV)
	@$(INSTALL) --require-hashes -r requirements.lock | $(PROGRESS)
	@if $(BIN)/python -c 'from importlib.metadata import requires; exit(not any("cuda" in one for one in requires("torch")))'; then \
	  $(INSTALL) --require-hashes -r requirements-cuda.lock | $(PROGRESS); fi
	@$(INSTALL) -q --no-build-isolation -e .
	@$(BIN)/python -m stages.offline_plots >/dev/null
	@touch $@

# Newer versions: change pyproject.toml, then this. torch's CPU build is not on every index: its hash is kept.
lock:
	@cpu=$$(grep -A1 '^torch==' requirements.lock | tail -1); \
	uv pip compile -q --generate-hashes --no-annotate --no-header --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --extra all --extra test pyproject.toml -o .venv/all.lock && \
	awk -v cpu="$$cpu" '/^[a-z]/ {to = /^(nvidia|cuda|triton)/ ? "requirements-cuda.lock" : "requirements.lock"} \
	  {print > to} /^torch==/ {print cpu > to}' .venv/all.lock

# A scale other than that of params.yaml runs in build/SCALE, in a copy of what the pipeline reads.
PLACE := $(if $(SCALE),build/$(SCALE),.)
HERE = export AERO_COMMIT=$$(python -c 'from aero.records import commit; print(commit())'); \
  cd $(PLACE) && export PYTHONPATH=$(abspath $(PLACE))
ALONE := flock -n -E 75 .dvc/tmp/make.lock
OTHERWISE = || { status=$$?; [ $$status -ne 75 ] || \
  echo "error: another make is running this pipeline in $(abspath $(PLACE)); wait for it or stop it" >&2; exit $$status; }

prepared: install
	@mkdir -p $(PLACE)/.dvc/tmp
ifneq ($(SCALE),)
	@mkdir -p $(PLACE)/reports
	@cp -a aero catalogue results stages .dvcignore dvc.yaml params.yaml pyproject.toml $(PLACE)
	@cp -a reports/*.py $(PLACE)/reports && cp .dvc/config $(PLACE)/.dvc
	@sed -i 's/^scale: [a-z]*/scale: $(SCALE)/' $(PLACE)/params.yaml
	@cd $(PLACE) && dvc config --local core.no_scm true
else
	@git rev-parse HEAD >/dev/null 2>&1 || dvc config --local core.no_scm true
endif
	@cd $(PLACE) && python -m aero.config
.PHONY: prepared

# Scale desk is the evidence: all its runs, not the default set alone.
ifeq ($(SCALE),desk)
repro: all
else
repro: prepared
	@$(HERE); $(ALONE) dvc repro $(OTHERWISE)
	@echo "$(PLACE)/reports/report.html and report.pdf are ready"
endif

all: prepared
	@$(HERE); $(ALONE) sh -c 'dvc repro --all-pipelines && dvc repro' $(OTHERWISE)
	@echo "$(PLACE)/reports/report.html and report.pdf are ready"

parallel: prepared
	@$(HERE); $(ALONE) sh -c 'dvc repro catalogue/dvc.yaml:parallel_context && dvc repro' $(OTHERWISE)

report: install
	@python -m stages.report

example: install
	@python -m stages.tokenize_corpus
	@python -m stages.train ereg-smt-scfuffn --steps 600 --out $(EXAMPLE) --unless-done
	@echo 'now: aero ask --checkpoint $(EXAMPLE)/checkpoint.safetensors --tokens 3 "def add(a, b):"'

docs: install
	@python -m stages.docs

keep: install
	@python -m stages.keep --from $(PLACE)/runs

test: install
	@python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

slow: install
	@python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not nightly"

nightly: install
	@timeout 1200 python -m pytest -m nightly

bench: install
	@python -m benchmarks

lint: install
	@ruff check .

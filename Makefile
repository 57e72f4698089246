# make repro   install, then train, measure and render the default set: AERO Tables 2 and 4 (SCALE=smoke for a quick look)
# make all     the same for every run of the papers; JOBS=N trainings at once, here and there
# make parallel  parallel context encoding: train its small model, measure it, render the report (not part of repro)
# make test    install, then the tests
# make slow    the tests that run longer than that: further rows in two processes, every stage followed, kills
# make nightly the longer tests: every run of the papers at the smoke scale
# make fuzz    damaged input for every reader of files and messages; CASES=N of each, SEED=N
# make audit   look the packages of the lock up in a database of known vulnerabilities; needs the network
# make faults  strike the pipeline at 100 random moments; 1,000 private questions to one server (hours)
# make report  install, then render the report from kept and fresh results, computing nothing
# make docs    write the generated numbers of README.md and docs/ from the results
# make bench   speed and memory beside what one would use instead; about an hour on a quiet machine of 2 cores
# make keep    copy fresh results from runs/ into results/, which git keeps
PYTHON ?= python3.11
JOBS ?= 2
SCALE ?=
SEED ?= 1
CASES ?=
BIN := .venv/bin
# DVC itself, but for a dvc.lock that no kill leaves half-written and a params.yaml that is checked before its values
# are put into commands; plain `dvc` does neither.
DVC := dvc
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONHASHSEED := 0

.PHONY: repro all parallel test slow nightly faults fuzz audit bench report docs keep install lint
install: .venv/.installed

# uv when it is there, pip otherwise. The stamp is written last, so that a broken installation is tried again.
.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "error: Python 3.11 is needed (SPU has no build for others) and '$(PYTHON)' is not one; install it or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing --python $(PYTHON) .venv && uv pip install -q --python $(BIN)/python -r requirements.lock && \
	  uv pip install -q --python $(BIN)/python --no-deps -e .; \
	else \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .; \
	fi
	@$(BIN)/python -m stages.offline_plots >/dev/null
	@touch $@

# Trainings are independent, and so are their entropies and the sensitivity stages: JOBS at once, each on its own
# thread, under DVC's locks; then the rest in order. `-s dvc.yaml` keeps to that file: the report depends on all of runs/, and so on the other runs.
side_by_side = for kind in 'train(_again)?@|sensitivity' 'entropy(_again)?@'; do \
  $(DVC) stage list --name-only $(1) | grep -E "(^|:)($$kind)" | \
  xargs -r -P $(JOBS) -n 1 $(DVC) --wait-for-lock repro -s || exit 1; done

corpora = printf '%s\n' tokenize tokenize_languini | xargs -P $(JOBS) -n 1 $(DVC) --wait-for-lock repro -s && \
  $(DVC) repro -s configurations

repro: install
	@$(if $(SCALE),sed -i 's/^scale: [a-z]*/scale: $(SCALE)/' params.yaml)
	@python -m aero.config
	@$(DVC) status --quiet dvc.yaml || { $(corpora) && \
	  { $(call side_by_side,dvc.yaml); } && $(DVC) repro -s dvc.yaml; }
	@echo "reports/report.html and reports/report.pdf are ready"

all: install
	@$(if $(SCALE),sed -i 's/^scale: [a-z]*/scale: $(SCALE)/' params.yaml)
	@python -m aero.config
	@$(corpora) && \
	  { $(call side_by_side,dvc.yaml); } && { $(call side_by_side,catalogue/dvc.yaml); } && $(DVC) repro
	@echo "reports/report.html and reports/report.pdf are ready"

parallel: install
	@python -m aero.config
	@$(corpora) && $(DVC) stage list --name-only catalogue/dvc.yaml | grep -E '(^|:)parallel_context' | \
	  xargs -n 1 $(DVC) repro -s && python -m stages.report

report: install
	@python -m stages.report

docs: install
	@python -m aero.report.docs

test: install
	@python -m pytest -n 2 --dist loadfile

slow: install
	@python -m pytest -n 2 --dist loadfile -m "slow and not nightly"

nightly: install
	@timeout 1200 python -m pytest -m nightly

fuzz: install
	@python -m benchmarks.fuzz --seed $(SEED) $(if $(CASES),--cases $(CASES))

# An environment of its own: what audits the packages should not be one of them.
audit: install
	@$(PYTHON) -m venv .venv/audit && .venv/audit/bin/python -m pip install -q --disable-pip-version-check pip-audit && \
	  answered=$$(python -m benchmarks.advisories --ignored) && \
	  .venv/audit/bin/pip-audit --strict --disable-pip --no-deps $$answered -r requirements.lock

faults: install
	@failed=0; python -m benchmarks.transcript_sizes || failed=1; python -m benchmarks.faults || failed=1; python -m benchmarks.faults --targets report --moments 40 --out results/robustness/faults_report.json || failed=1; python -m benchmarks.long_server || failed=1; exit $$failed

bench: install
	@python -m benchmarks

keep: install
	@python -m stages.keep

lint: install
	@ruff check .

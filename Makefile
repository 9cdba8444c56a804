# Set up, run, look, test. `make` alone prints help.

PYTHON ?= python3
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := .state/installed
OUTPUTS := outputs

SCENARIO ?=
DEVICE ?=
SUITE ?=
DRY_RUN ?=
WORKERS ?=
PORT ?= 5000
ROUNDS ?= 3
ENVIRONMENT ?=
PROVE ?=
ARGS ?=

# Make's variables as Hydra overrides; an empty one says nothing.
OVERRIDES := $(if $(SCENARIO),'scenarios=[$(SCENARIO)]') $(if $(DEVICE),device=$(DEVICE)) \
	$(if $(SUITE),suite=$(SUITE)) $(if $(WORKERS),workers=$(WORKERS)) \
	$(if $(filter-out 0 false no,$(DRY_RUN)),dry_run=true) $(ARGS)

# For `replay`, PYTHON is the other interpreter, and not what the environment is made with.
REPLAYING := $(filter replay,$(MAKECMDGOALS))
GIVEN := $(if $(filter command,$(origin PYTHON)),$(PYTHON))
SETUP := $(if $(REPLAYING),python3,$(PYTHON))
ELSEWHERE := $(if $(ENVIRONMENT),environment=$(ENVIRONMENT)) $(if $(PROVE),prove=$(PROVE)) \
	$(if $(GIVEN),$(if $(ENVIRONMENT),,environment=interpreter) environment.python=$(GIVEN))

# The value of a variable as one word for the shell, dollars and quotes as they were given.
quoted = '$(subst ','\'',$(value $(1)))'

.DEFAULT_GOAL := help
.PHONY: help run-all capsule replay report claims publish snippet catalogue ui check test test-all bench clean

help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nNarrow a run: SCENARIO=%scheckpoint/*%s DEVICE=cpu SUITE=quick WORKERS=1 DRY_RUN=1\n' "'" "'"
	@printf 'Set up with:  PYTHON=/path/to/python3.11 TORCH=2.13.0\n'

##@ Run
run-all: $(STAMP) ## Run every scenario on every device here, archive, publish to MLflow, report
	@$(BIN)/python -m experiments $(OVERRIDES)

capsule: $(STAMP) ## Write capsule.pyz: scenarios and their evidence, to run anywhere with torch
	@$(BIN)/python -m experiments capsule=capsule.pyz $(OVERRIDES)

replay: $(STAMP) ## Sweep again elsewhere and compare: ENVIRONMENT=avx2, PYTHON=/path/to/python, or PROVE=SETTING
	@test -n '$(strip $(ELSEWHERE))' || { echo "make: say where to replay: ENVIRONMENT=$$(ls conf/environment | sed s/.yaml// | paste -sd '|'), PYTHON=/path/to/python, or PROVE=SETTING of the report (all: every one)" >&2; exit 1; }
	@$(BIN)/python -m experiments $(ELSEWHERE) $(OVERRIDES)

catalogue: $(STAMP) ## List scenarios and cases
	@$(BIN)/python -m experiments.catalogue $(if $(SCENARIO),'$(SCENARIO)')

snippet: $(STAMP) ## Print one case to paste, run beside it first: SCENARIO=... CASE=... UNCHECKED=1
	@$(BIN)/python -m experiments.snippet $(call quoted,SCENARIO) $(call quoted,CASE) $(if $(UNCHECKED),--unchecked)

##@ Look
ui: $(STAMP) ## Browse the MLflow runs on this machine: PORT=5000
	@$(BIN)/python -m store.ui --port $(PORT)

report: $(STAMP) ## Write the report on the latest sweep again
	@$(BIN)/python -m reports write

claims: $(STAMP) ## Print every claim with its ruling
	@$(BIN)/python -m reports claims

publish: $(STAMP) ## Keep the latest report and its records in the checkout, to be committed
	@$(BIN)/python -m reports publish

##@ Work on it
check: $(STAMP) ## Lint and type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check ## Lint, type check, and the tests with a fixed sample of the slow ones
	$(BIN)/python -m pytest tests -n auto --dist loadfile -m 'not slow' $(ARGS)

test-all: check ## Lint, type check, and every test
	$(BIN)/python -m pytest tests -n auto --dist loadfile $(ARGS)

bench: $(STAMP) ## Time a recorded sweep against bare interpreters: ROUNDS=3
	@$(BIN)/python -m experiments.bench --rounds $(ROUNDS)

clean: ## Remove the environment and caches; outputs/ stays
	rm -rf $(VENV) .state *.egg-info .mypy_cache .pytest_cache .ruff_cache

# Only what the project needs is installed, not the project: it runs from the checkout, and an import hook of its own
# would be among the frames that an error lists. The environment is made once, and again when what it is made from changes.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(SETUP) > /dev/null || { echo "make: no $(SETUP) here; give one with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(SETUP) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(SETUP) --version) is too old, the lab needs 3.11 or newer; give one with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@mkdir -p .state
	@echo "setting up $(VENV) (once; a few minutes, about 2 GB)" >&2
	@$(SETUP) -m venv --clear $(VENV)
	@sed -e '' $(if $(TORCH),-e 's/^torch==.*/torch==$(TORCH)/') constraints.txt > .state/constraints.txt
	@$(SETUP) -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*project['dependencies'], *project['optional-dependencies']['dev'], sep='\\n')" > .state/requirements.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint .state/constraints.txt pip setuptools wheel
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint .state/constraints.txt --requirement .state/requirements.txt
	@touch $@

# Set up, run, look, test. `make` alone prints help.

PYTHON ?= python3
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := .state/installed

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

# For `replay`, PYTHON is the other interpreter, and not what the environment is made with.
INTERPRETER := $(if $(filter command,$(origin PYTHON)),$(value PYTHON))
SETUP := $(if $(filter replay,$(MAKECMDGOALS)),python3,$(value PYTHON))

# A value is a text, whatever it holds: recipes find it in their environment, where neither make nor the shell looks
# into it. Not to be read as $(NAME), and in a recipe only within double quotes. experiments/app/make.py does the rest.
HANDED := SCENARIO CASE UNCHECKED DEVICE SUITE DRY_RUN WORKERS PORT ROUNDS ENVIRONMENT PROVE INTERPRETER SETUP \
	PYTHON TORCH ARGS
$(foreach name,$(HANDED),$(eval override $(name) := $$(value $(name))))
export $(HANDED)
HAND := $(BIN)/python -m experiments.app.make

.DEFAULT_GOAL := help
.PHONY: help run-all capsule replay report claims publish snippet catalogue ui check test test-all bench clean

# Whoever has seen enough closes the pipe, which is no failure: 141 is what comes of it.
help: ## Print this help
	@( awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST) && \
	printf '\nNarrow a run: SCENARIO=%scheckpoint/*%s DEVICE=cpu SUITE=quick WORKERS=1 DRY_RUN=1\n' "'" "'" && \
	printf 'Set up with:  PYTHON=/path/to/python3.11 TORCH=2.13.0\n' ); \
	status=$$?; test $$status -eq 141 || exit $$status

##@ Run
run-all: $(STAMP) ## Run every scenario on every device here, archive, publish to MLflow, report
	@$(HAND) run-all

capsule: $(STAMP) ## Write capsule.pyz: scenarios and their evidence, to run anywhere with torch
	@$(HAND) capsule capsule=capsule.pyz

replay: $(STAMP) ## Sweep again elsewhere and compare: ENVIRONMENT=avx2, PYTHON=/path/to/python, or PROVE=SETTING
	@$(HAND) replay

catalogue: $(STAMP) ## List scenarios and cases
	@$(HAND) catalogue

snippet: $(STAMP) ## Print one case to paste, run beside it first: SCENARIO=... CASE=... UNCHECKED=1
	@$(HAND) snippet

##@ Look
ui: $(STAMP) ## Browse the MLflow runs on this machine: PORT=5000
	@$(BIN)/python -m reports.mlflow ui --port="$$PORT"

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
	$(HAND) test tests -n auto --dist loadfile -m 'not slow'

test-all: check ## Lint, type check, and every test
	TWOFOLD_ALL=1 $(HAND) test tests -n auto --dist loadfile

bench: $(STAMP) ## Time a recorded sweep against bare interpreters: ROUNDS=3
	@$(BIN)/python -m experiments.app.benchmark --rounds="$$ROUNDS"

clean: ## Remove the environment and caches; outputs/ stays
	rm -rf $(VENV) .state *.egg-info .mypy_cache .pytest_cache .ruff_cache

# The environment is made once, and again when what it is made from changes or it is gone: beside the old one, which it
# replaces when it is whole.
ifeq ($(wildcard $(BIN)/python),)
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml constraints.txt
	@command -v "$$SETUP" > /dev/null || { printf 'make: no %s here; give one with PYTHON=/path/to/python3.11\n' "$$SETUP" >&2; exit 1; }
	@"$$SETUP" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { printf 'make: %s is too old, the lab needs 3.11 or newer; give one with PYTHON=/path/to/python3.11\n' "$$("$$SETUP" --version)" >&2; exit 1; }
	@"$$SETUP" -P experiments/app/install.py
	@touch $@

# `make serve` takes a fresh clone to a running service; `make test` runs everything. Both skip what is
# done, and install again when a lock changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
ENGINE := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-deps

# A stamp carries the digest of what was installed: times of files say nothing after a checkout, a copy,
# or a restored cache.
digest = $(shell sha256sum $(1) | cut -c1-12)
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime-$(ENGINE)-$(call digest,requirements/$(ENGINE).lock)
PROJECT := $(VENV)/.project-$(call digest,pyproject.toml)
DEV := $(VENV)/.dev-$(call digest,requirements/dev.lock)

.PHONY: help serve install test check schema settings demo lock clean

help: ## Say what each target does
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

serve: install ## Install what is missing, then serve on http://127.0.0.1:8000 (ARGS="--port 9000")
	@exec $(BIN)/denizen serve $(ARGS)

install: $(RUNTIME) $(PROJECT) ## Create .venv with the pinned packages

test: install $(DEV) ## Run every test, the real engine's included (ARGS="tests/memory -k store")
	$(BIN)/python -m pytest $(ARGS)

check: install $(DEV) ## Format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

schema: install ## Write docs/schema.md from the migrations
	$(BIN)/python -m memory.schema_doc

settings: install ## Write docs/settings.md from the settings' models
	$(BIN)/python -m assembly.settings_doc

demo: install ## Watch it learn from live tasks and roll back
	@exec $(BIN)/denizen demo $(ARGS)

# The GPU lock is resolved without extra indexes and wheel folders, where CPU builds of torch may lie:
# a CPU torch asks for none of the CUDA libraries.
RESOLVE := $(VENV)-lock/bin/python -m pip install --quiet --dry-run --ignore-installed --report
lock: ## Resolve requirements/*.in afresh into the three locks
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(RESOLVE) $(VENV)-lock/cpu.json -r requirements/cpu.in
	$(RESOLVE) $(VENV)-lock/dev.json -r requirements/dev.in
	PIP_CONFIG_FILE=/dev/null PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS= \
		$(RESOLVE) $(VENV)-lock/gpu.json -r requirements/gpu.in
	$(VENV)-lock/bin/python requirements/lock.py $(VENV)-lock
	rm -rf $(VENV)-lock

clean: ## Remove .venv and caches; DENIZEN_HOME stays
	rm -rf $(VENV) $(VENV)-lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last, so an interrupted creation or installation is done again.
$(CREATED):
	@[[ "$$(uname -sm)" == "Linux x86_64" ]] \
		|| { echo "The locks are for Linux x86-64; this is $$(uname -sm)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Denizen needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUNTIME): | $(CREATED)
	@lock=requirements/$(ENGINE).lock; \
	echo "Installing $$(grep -c == $$lock) pinned packages into $(VENV) for $(ENGINE) (about 4 GB; minutes, once)."
	$(PIP_INSTALL) -r requirements/$(ENGINE).lock
	$(BIN)/python requirements/check_torch.py $(ENGINE)
	@rm -f $(VENV)/.runtime-*
	@touch $@

$(PROJECT): | $(RUNTIME)
	$(PIP_INSTALL) --no-build-isolation --editable .
	@rm -f $(VENV)/.project-*
	@touch $@

$(DEV): | $(RUNTIME)
	$(PIP_INSTALL) -r requirements/dev.lock
	@rm -f $(VENV)/.dev-*
	@touch $@

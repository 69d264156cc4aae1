# Everything runs in .venv, made from pyproject.toml alone. PYTHON picks the interpreter (3.10 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PROTOS := $(wildcard proto/hoss/v1/*.proto)

.PHONY: help setup demo test check generate check-generated format clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/.runtime: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.dev  ## a virtual environment with everything for development

demo: $(VENV)/.runtime  ## a whole cluster on this machine: 1,000 nodes, 50,000 pods, an audit
	$(BIN)/hoss demo

test: $(VENV)/.dev  ## unit, property, contract and integration tests
	$(BIN)/python -m pytest

check: $(VENV)/.dev check-generated  ## lint, format, types, architecture, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

generate: $(VENV)/.dev  ## hoss/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=. $(PROTOS)

check-generated: generate
	@git diff --exit-code --stat -- hoss/v1 || { echo "hoss/v1 is not what proto/ says: commit what 'make generate' made"; exit 1; }

format: $(VENV)/.dev  ## let ruff format and fix
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

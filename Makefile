# One command each: `make demo` shows it, `make test` proves it, `make check` is the quick half of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Most of a test of processes is waiting for them; a file's tests share fixtures and stay together.
WORKERS := -n logical --maxprocesses 4 --dist loadfile

.PHONY: help demo test test-full check unit bench soak clean

help:
	@echo "make demo       set everything up and answer a prompt through the three processes"
	@echo "make test       set everything up and run all that must pass (ruff, mypy, import contracts, pytest)"
	@echo "make test-full  the same with every test matrix whole (much longer)"
	@echo "make check      ruff, mypy, import contracts and the page of modules only"
	@echo "make bench      the benchmarks, ten minutes: JSON and pictures in OUT=bench-results; use a quiet machine"
	@echo "make soak       clients, kills and stops for MINUTES=60; figures and a picture in soak/"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"mtpd needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python -m mtp_daemon.demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/modules.py --check

unit: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS)

test: check unit

test-full: check
	$(BIN)/python -m pytest $(WORKERS) --full

BENCH_OUT := $(or $(OUT),bench-results)
bench: $(STAMP)
	$(BIN)/python -m mtp_daemon.bench.cli all --out $(BENCH_OUT)
	@echo "== the short micro-benchmarks: one part each"
	$(BIN)/python tests/bench/bench_engine_hit_path.py --small --rounds 2 --tokens 24
	$(BIN)/python tests/bench/bench_mtp.py --tokens 48 --count 1
	$(BIN)/python tests/bench/bench_loader_reads.py --experts 100 --rounds 2
	$(BIN)/python tests/bench/bench_pack.py --gb 0.25 --rounds 1
	@echo "JSON and pictures: $(BENCH_OUT)"

soak: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m support.soak --minutes $(or $(MINUTES),60) --seed $(or $(SEED),0)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

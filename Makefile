# Everything starts here; `make run` and `make test` set up .venv by themselves.
.DEFAULT_GOAL := help
PY := .venv/bin/python
ARGS ?=
# Tests start hundreds of programs, so what they load is compiled once.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# A test process for each processor; one that has nothing left takes from the others. Fast tests often
# wait for other processes, so one more of them fills the gaps.
PARALLEL := -n logical --maxprocesses 8 --dist worksteal
ONE_MORE := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 9 --dist worksteal
# Tests that fail beside others are run once more, alone. Those that then pass depend on the load of
# the machine: they are listed as PASSED at the end, and have to be mended.
ALONE := $(PYTEST) -m "not soak" -rp --timeout 1800 --last-failed --last-failed-no-failures none

.PHONY: help run dev test test-slow lint types imports check wheel mutants soak bench-quick device clean

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

run: ## open the workbench, or run a verb: make run ARGS="doctor"
	@./grpo-tui $(ARGS)

dev: ## set up .venv for work on the code
	@tools/setup dev

test: dev ## the tests that take about a second at most
	$(PYTEST) $(ONE_MORE) || $(ALONE)

test-slow: dev ## the tests that take longer
	$(PYTEST) -m slow -rs --timeout 1800 $(PARALLEL) || $(ALONE)

lint: dev ## format and lint
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: dev ## mypy, strict, also of what only macOS runs
	$(PY) -m mypy
	$(PY) -m mypy --platform darwin --cache-dir .mypy_cache/darwin

imports: dev ## the direction app -> experiments -> grpo_engine
	.venv/bin/lint-imports

check: lint types imports test ## all of it

wheel: dev ## build the wheel, and use it in new environments: make wheel ARGS=python3.12
	$(PY) -P tools/check_wheel.py $(ARGS)

mutants: dev ## change the maths line by line; does a test notice? also ARGS=inspector, ARGS=charts
	$(PY) -m tests.tools.mutants $(ARGS)

soak: dev ## hours of faults and load
	$(PYTEST) -m soak --timeout 3600
	$(PY) -m benchmarks.soak
	$(PY) -m tests.tools.kills

bench-quick: dev ## the short benchmarks
	$(PY) -m benchmarks.quick

device: ## what this machine does, as a report for an issue: make device ARGS="--quick"
	@tools/setup run
	$(PY) -m benchmarks.device $(ARGS)

clean: ## remove what the set-up and the checks made
	rm -rf .venv .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# `make demo` runs the main job, `make test` every test. Both make .venv first; PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
DEMO ?= runs/demo
BIN := .venv/bin
export JAX_PLATFORMS ?= cpu

.PHONY: demo test clean

demo: .venv/.installed
	$(BIN)/python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=$(DEMO) --backend=local

test: .venv/.installed
	$(BIN)/python -m pytest

.venv/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or later is needed, this is {sys.version.split()[0]}; choose another by make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv runs

# `make demo` runs the main job, `make test` every test, `make check` style, types and some tests, `make lint` style and types.
# Each makes .venv first, with what it needs, by the newest Python here; PYTHON picks another (>= 3.11).
DEMO ?= runs/demo
BIN := .venv/bin
export JAX_PLATFORMS ?= cpu

.PHONY: demo test check lint soak results bench site gpu tpu wheels executables lock sbom audit clean

# The main job: sweep, law, plan, pictures. Each line is a command to copy; what it says at length is kept in a file, and
# the last screen says what was found. Started again it skips what is done.
demo: .venv/.train
	$(BIN)/python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=$(DEMO) --backend=local
	$(BIN)/python -m fit law --runs=$(DEMO)/runs.csv --holdout=largest-compute:3 --bootstrap=50 --out=$(DEMO)/law.json --verbose > $(DEMO)/law.txt
	$(BIN)/python -m fit plot --law=$(DEMO)/law.json --runs=$(DEMO)/runs.csv --out_dir=$(DEMO)/plots > $(DEMO)/plots.txt
	$(BIN)/python -m fit plan --law=$(DEMO)/law.json --flops=1e12 > $(DEMO)/plan.txt
	$(BIN)/python -m fit page --law=$(DEMO)/law.json --runs=$(DEMO)/runs.csv --out=$(DEMO)/planner.html > $(DEMO)/page.txt
	@echo
	@$(BIN)/python -m fit report --law=$(DEMO)/law.json --runs=$(DEMO)/runs.csv --out=$(DEMO)/report.html
	@echo
	@echo "Open $(DEMO)/report.html for the decision, its picture and all figures; $(DEMO)/planner.html to ask other questions."
	@echo "Runs: $(DEMO)/runs.csv. Law and plan in words: $(DEMO)/law.txt, plan.txt. Pictures: $(DEMO)/plots. Go on with"
	@echo
	@echo "  source .venv/bin/activate"
	@echo "  python -m fit plan --law=$(DEMO)/law.json --flops=1e12 --emit_config=planned.py    # the next model, as a config"
	@echo "  python -m jmoe.generate --workdir=$$(echo $(DEMO)/jobs/d24-e8-*) --prompt='def '   # text from a trained one"
	@echo "  python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80    # a real budget, by the published law"

test: .venv/.test
	$(BIN)/python -m pytest

# Between two edits: style, types, and the tests that start hardly a process and compile for one device.
CHECKED := $(addprefix tests/jmoe/,config/test_check config/test_counts config/test_schedule cost/test_needs \
	model/test_model model/test_moe text/test_data text/test_manifest) \
	$(addprefix tests/fit/,commands/test_answer laws/test_laws messages/test_units planning/test_optimum) \
	$(addprefix tests/launch/,test_manifest test_sweeps test_varied)
check: lint
	$(BIN)/python -m pytest $(addsuffix .py,$(CHECKED)) -k "not mesh"
	@echo "These were the quick tests; make test runs all."

lint: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/ty check fit jmoe launch
	@git log -20 --no-merges --format=%s 2>/dev/null | awk 'length > 72 { print "commit subject longer than 72 characters: " $$0; bad = 1 } END { exit bad }'

# The law of results/ fitted again, with its tables and pictures, from results/runs.csv.
results: .venv/.train
	$(BIN)/python -m results.make

# How far beyond its runs each form of law holds, on tables of others' runs and ours: in compute, and in experts; and
# whether a prior helps on sources that it was not made from.
bench: .venv/.train
	$(BIN)/python -m benchmarks.extrapolation
	$(BIN)/python -m benchmarks.prior
	$(BIN)/python -m benchmarks.mixture_laws
	$(BIN)/python -m benchmarks.tasks

# What may be hosted, in SITE: the planner page, and the docs with the tables of benchmarks/. Needs no network. The folder
# can be pushed as it is, to GitHub Pages (.nojekyll) and as a static Hugging Face Space (README.md).
SITE ?= site
site: .venv/.docs
	$(BIN)/sphinx-build -q -W -c docs . $(SITE)
	cp $(SITE)/README.html $(SITE)/index.html
	$(BIN)/python -m fit page --out=$(SITE)/planner.html
	{ echo ---; cat docs/space.yaml; echo ---; } > $(SITE)/README.md
	touch $(SITE)/.nojekyll

# Everything that is measured on a GPU or a TPU, in order of worth, within MINUTES; again, and it goes on
# (benchmarks/accelerator). OUT is where results go. CPU=1 tries all of it at toy size. WHEELS=DIR, which `make wheels` fills, is for a host
# without a network, whose own Python (WHEELS_PYTHON) has a jax (WHEELS_JAX) that sees the GPU. `make wheels` also makes
# the text of the study, and prints what all of it takes that has to be carried. `make executables`, which may come
# before it, compiles the steps of the study for that jax on TOPOLOGY. HAS="tensorstore grpcio" names large packages that
# the host has.
OUT ?= runs/accelerator$(if $(CPU),-cpu)
MINUTES ?= 9
WHEELS_PYTHON ?= 3.12
WHEELS_JAX ?= 0.11.2
AWAY = $(or $(PYTHON),python3) benchmarks/accelerator/python.py --kind=$(KIND) $(WHEELS:%=--wheels=%) --
gpu: KIND := $(if $(CPU),cpu,cuda)
tpu: KIND := $(if $(CPU),cpu,tpu)
gpu tpu: $(if $(CPU),.venv/.train)
	$(if $(CPU),$(BIN)/python -m,$(AWAY)) benchmarks.accelerator --kind=$(KIND) --out=$(OUT) --minutes=$(MINUTES)

STUDY_TEXT := runs/bytes_2026/text.parquet
EXECUTABLES := runs/executables
TOPOLOGY ?= H100:1
wheels: $(STUDY_TEXT)
	$(or $(PYTHON),python3) benchmarks/accelerator/python.py --collect=$(or $(WHEELS),wheels) --python=$(WHEELS_PYTHON) --jax=$(WHEELS_JAX) \
		--has="$(HAS)"
	@du -ch --apparent-size $(or $(WHEELS),wheels) $(STUDY_TEXT) $(wildcard $(EXECUTABLES)) $$(git ls-files | cut -d/ -f1 | sort -u)
$(STUDY_TEXT): .venv/.train
	$(BIN)/python -m results.text --out=$@

# A jax other than that of constraints.txt, and its compiler for GPUs.
COMPILER := .venv-cuda-jax$(WHEELS_JAX)
executables: $(COMPILER)/.made
	$(COMPILER)/bin/python -m benchmarks.accelerator.study_executables --topology=$(TOPOLOGY) --out=$(EXECUTABLES)
$(COMPILER)/.made: setup.cfg constraints.txt
	$(NEWEST) -m venv --clear $(COMPILER)
	grep -vE '^jax(lib)?==' constraints.txt > $(COMPILER)/constraints.txt
	$(COMPILER)/bin/python -m pip install --quiet --disable-pip-version-check -c $(COMPILER)/constraints.txt \
		-e '.[train]' 'jax[cuda13]==$(WHEELS_JAX)'
	touch $@

# Two hours at most: runs and sweeps killed at random moments, each compared with an undisturbed one.
SOAKED := $(addprefix tests/,jmoe/storage/test_outage.py jmoe/storage/test_power_loss.py jmoe/storage/test_storage.py launch/test_gs.py \
	launch/test_local.py launch/test_owner.py launch/test_slurm.py)
AT_MOST = JMOE_SOAK=1 timeout --signal=INT --kill-after=60
soak: .venv/.test
	$(AT_MOST) 55m $(BIN)/python -m pytest -n0 tests/jmoe/run/test_kills.py; kills=$$?; \
		$(AT_MOST) 60m $(BIN)/python -m pytest $(SOAKED) && exit $$kills

NEWEST = $(or $(PYTHON),$(shell .ci/python),python3)
# Where no registry answers, pip itself would end with "conflicting dependencies".
NO_REGISTRY := error: the package registry cannot be reached: connect this machine to it, or name a mirror by PIP_INDEX_URL; \
	pip's own words are in .venv/pip.log
# The package with one of its extras; that of the tests has what the demo needs. LOCKED=1, as in CI, installs no file but
# those whose hashes are in requirements/, and builds the package with their setuptools.
LOCKED ?=
HASHED = $(if $(LOCKED),$(PIP) --require-hashes -r requirements/$*.lock &&)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
.venv/.docs .venv/.train .venv/.test: .venv/.%: setup.cfg pyproject.toml constraints.txt
	$(NEWEST) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or later is needed, this is {sys.version.split()[0]}; choose another by make PYTHON=...")'
	$(NEWEST) -m venv $$(test "$$($(BIN)/python -V 2>&1)" = "$$($(NEWEST) -V)" || echo --clear) .venv
	@echo "pip install -e '.[$*]'"; export PIP_RETRIES=$${PIP_RETRIES:-2}; { $(HASHED) \
		$(PIP) -c constraints.txt $(if $(LOCKED),--no-build-isolation) -e '.[$*]'; } 2> .venv/pip.log || { \
		grep -q "connection broken" .venv/pip.log && echo "$(NO_REGISTRY)" >&2 || cat .venv/pip.log >&2; exit 1; }
	touch $@ $(if $(findstring test,$@),.venv/.docs .venv/.train)

# Tools that look at the packages and not at the code, in a venv of their own.
TOOLS := .venv-tools/bin
.venv-tools/.made: Makefile
	$(NEWEST) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet uv==0.13.9 pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

# The hashes of constraints.txt's versions, for each extra that make installs, on every Python and system. Needs PyPI.
lock: .venv-tools/.made
	for extra in docs train test; do echo setuptools | $(TOOLS)/uv pip compile --quiet setup.cfg - --extra $$extra --universal \
		--python-version 3.11 --constraint constraints.txt --generate-hashes --no-annotate \
		--custom-compile-command "make lock" --output-file requirements/$$extra.lock || exit 1; done

# What is installed in .venv, with licenses, as CycloneDX: sbom.json.
sbom: .venv/.test .venv-tools/.made
	$(TOOLS)/cyclonedx-py environment --output-reproducible --of JSON --output-file sbom.json .venv/bin/python
	@echo "sbom.json"

# Which of these versions have known vulnerabilities. Asks PyPI, so it needs a network, and fails without one.
audit: .venv-tools/.made
	$(TOOLS)/pip-audit --strict --disable-pip --require-hashes --requirement requirements/test.lock

clean:
	rm -rf .venv .venv-cuda* .venv-tpu .venv-tools runs site sbom.json

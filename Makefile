# Every target sets up .venv by itself, those of developers with their tools. GNU make and Python 3.11, 3.12 or 3.13 are all that it needs.
.DEFAULT_GOAL := help
.PHONY: help install run test test-slow attacks compose-test check bench results fuzz sim seeds docs lock release clean

PYTHONS := python3.11 python3.12 python3.13 python3
READY := .venv/.ready
INSTALLED := .venv/.installed
BIN := .venv/bin

PEERS ?= 4
MINUTES ?= 5
SEEDS ?= 1000
KIND ?= attacked
DEVICE ?= cpu
INPUTS ?= 50000
JOBS ?= 2
WORKERS ?= 3
HYPOTHESIS_PROFILE ?= ci
export HYPOTHESIS_PROFILE

# Hundreds of processes that the tests start read what the first has compiled, also where a container says otherwise.
unexport PYTHONDONTWRITEBYTECODE

FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: $(READY) ## set up .venv for taking part, and say how the shell finds muster
	@echo 'where your shell finds muster: export PATH="$(CURDIR)/$(BIN):$$PATH"'

run: $(READY) ## train with a swarm of PEERS=4 real peers for MINUTES=5, on this machine
	@$(BIN)/muster swarm --peers $(PEERS) --minutes $(MINUTES)
	@$(MAKE) --no-print-directory install

# Unit tests share two cores between three workers, each with one thread, since some tests wait for time to pass.
# A swarm wants the cores for itself.
test: $(INSTALLED) ## run all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not swarm and not slow and not docker" -n $(WORKERS) --dist worksteal
	$(BIN)/python -m pytest -m "swarm and not slow" tests/real

# Hypothesis marks the tests of properties itself.
test-slow: $(INSTALLED) ## run what make test leaves out: further seeds and settings, more examples, and long real swarms
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest -m "(slow or hypothesis) and not swarm and not docker and not hours" -n $(WORKERS) --dist worksteal
	$(BIN)/python -m pytest -m "slow and swarm and not hours"

attacks: $(INSTALLED) ## run every attack, two by two, among real processes, and whatever else an hour has no room for
	$(BIN)/python -m pytest -m "hours"

compose-test: $(INSTALLED) ## build the image and run the tests of the swarm in containers
	docker/test.sh

check: $(INSTALLED) ## formatting, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED) ## run the benchmarks, one after the other
	@for script in $(sort $(wildcard tests/bench/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

results: $(INSTALLED) ## run the experiments of docs/research/results.md that have no result yet (GROUPS=…, DEVICE=cpu; hours)
	$(BIN)/pip install -q -c constraints.txt -e '.[plots]'
	$(BIN)/python -m tests.quality.results --jobs $(JOBS) --device $(DEVICE) $(GROUPS)

fuzz: $(INSTALLED) ## feed every reader of strangers' bytes with INPUTS=50000 mutated inputs each
	@$(BIN)/python -m tests.fuzz.run --inputs $(INPUTS)

sim: $(INSTALLED) ## drive the round machine through SEEDS=1000 simulated runs
	@$(BIN)/python -m coordinator.simulator --seeds $(SEEDS)

seeds: $(INSTALLED) ## run the next SEEDS=1000 seeds of KIND=attacked that docs/research/seed-ledger.md lacks, and record them there
	@$(BIN)/python -m tests.sim.ledger --kind "$(KIND)" --seeds $(SEEDS)

docs: $(INSTALLED) ## build the site of docs/, with search, into build/site
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'to read it, with search: python3 -m http.server --bind 127.0.0.1 --directory build/site'

lock: $(INSTALLED) ## write requirements.lock anew: what a user installs, with the digest of every file
	$(BIN)/pip install -q -c constraints.txt -e '.[release]'
	$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
		--no-annotate --custom-compile-command 'make lock' -c constraints.txt -o requirements.lock pyproject.toml

release: $(INSTALLED) ## build wheel and sdist into dist/, list what they need, and look for known weaknesses in it
	$(BIN)/pip install -q -c constraints.txt -e '.[release]'
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build --directory dist
	$(BIN)/cyclonedx-py requirements requirements.lock --output-reproducible --output-file dist/sbom.json
	cd dist && sha256sum *.whl *.tar.gz sbom.json > SHA256SUMS
	$(BIN)/pip-audit --require-hashes --disable-pip --strict --progress-spinner off -r requirements.lock

clean: ## remove .venv, builds and caches (never keys, checkpoints or reports)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find peer dht coordinator dashboard tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Makes .venv, unless one is there that fits.
define VENV
	@if ! { $(BIN)/python -c '$(FITS)' && $(BIN)/python -m pip --version; } >/dev/null 2>&1; then \
		python=; \
		for candidate in $(PYTHONS); do \
			if $$candidate -c '$(FITS)' 2>/dev/null; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "Muster needs Python 3.11, 3.12 or 3.13 and found none of them: install one (on Debian or Ubuntu: sudo apt install python3 python3-venv)." >&2; exit 1; \
		fi; \
		if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
			echo "$$python has no venv module: install it (on Debian or Ubuntu: sudo apt install $$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'))." >&2; exit 1; \
		fi; \
		$$python -m venv --clear .venv; \
	fi
endef

# A user needs no tools of developers; what they have installed has everything.
$(READY): pyproject.toml constraints.txt
	$(VENV)
	@if ! [ $(INSTALLED) -nt pyproject.toml -a $(INSTALLED) -nt constraints.txt ]; then \
		echo "Installing Muster and what it needs into .venv; the first time this takes some minutes."; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .; \
	fi
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(VENV)
	@echo "Installing Muster, what it needs and the tools of developers into .venv; the first time this takes some minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

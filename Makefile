# The two commands: `make run` runs the main job, `make test` passes the tests. Each sets up first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# uv where it is found, else pip: the same versions, several times as fast. Only uv checks hashes: pip
# refuses them beside an editable package, which has none
UV := $(shell command -v uv 2>/dev/null)
LOCK := $(if $(UV),requirements-hashed.lock,requirements.lock)
INSTALL := $(if $(UV),'$(UV)' pip install --python '$(BIN)/python' --compile-bytecode,'$(BIN)/python' -m pip install --disable-pip-version-check)

.PHONY: help setup run lint check staged test nightly full claims lab reset bench notebooks book dataset lock clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv with the pinned dependencies

$(READY): pyproject.toml requirements.lock requirements-hashed.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
		|| { echo 'Python 3.11 to 3.14 is needed; name one, as in: make run PYTHON=python3.12'; exit 1; }
	@echo 'Setting up .venv with $(if $(UV),uv,pip). This takes some minutes the first time; the README says how to make it quicker and smaller'
	$(PYTHON) -m venv .venv
	$(INSTALL) --quiet --constraint $(LOCK) --editable '.[dev]'
	@touch $(READY)

run: $(READY) ## Run lesson 03 (OCFL on turned digits) and print what came of it; options in ARGS, as in: make run ARGS='-p seed 1 --verbose'
	@'$(BIN)/python' -m cflkit run notebooks/03_ocfl_temperature.ipynb $(ARGS)

lint: $(READY) ## Style, the layers and the size of the package, the form of notebooks (seconds)
	'$(BIN)/ruff' check .
	'$(BIN)/ruff' format --check .
	'$(BIN)/lint-imports' --no-logo --no-cache
	'$(BIN)/python' tests/lint_notebooks.py
	'$(BIN)/python' tests/code_lines.py

# Two processes share the cores, and get in each other's way if each uses all of them
check test nightly: export OMP_NUM_THREADS := 1

check: lint ## The fast lane for daily work: lint and quick tests
	'$(BIN)/python' -m pytest tests -m 'not slow and not nightly' --hypothesis-profile quick --numprocesses 2

# The notebooks as they are staged or committed: a reader's changes to a lesson break no test. Without
# git, as in a downloaded archive, they are those that lie there
STAGED := data/cache/staged
PYTEST := '$(BIN)/python' -m pytest --nbval-lax --nbval-current-env --numprocesses 2 --dist loadfile --no-loadscope-reorder
WITHOUT_APPENDICES := --ignore-glob='*/[0-9][0-9]b_*.ipynb'

staged: $(READY)
	rm -rf $(STAGED)
	if git ls-files --error-unmatch Makefile >/dev/null 2>&1; then \
		git ls-files -z ':(glob)notebooks/*.ipynb' | git checkout-index -z --stdin --prefix=$(STAGED)/; \
	else mkdir -p $(STAGED)/notebooks && cp notebooks/*.ipynb $(STAGED)/notebooks; fi

test: lint staged ## Lint, types, unit, property, golden, lessons and reports (minutes; appendices are nightly); options in ARGS, as in: make test ARGS='--perturb 1'
	'$(BIN)/mypy'
	$(PYTEST) tests $(STAGED) -m 'not nightly' $(WITHOUT_APPENDICES) $(ARGS)

# Other machines, as far as one machine can play them: without wide instructions and with another layout
# of the memory, and with the kernels of a machine that is some years old. The last bit is perturbed
# there, too, so that two runs of the suite try three kinds of rounding
MACHINES := 'ATEN_CPU_CAPABILITY=default GLIBC_TUNABLES=glibc.malloc.tcache_count=0' \
	'ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2'

nightly: lint staged ## What takes hours: appendices, kept notebooks, kills, processes over sockets, the book, the last bit perturbed on other machines
	'$(BIN)/python' -m pytest tests -m nightly --numprocesses 2 --dist loadfile --ignore tests/test_lesson_edits.py
	'$(BIN)/python' -m pytest tests/test_lesson_edits.py -m nightly --numprocesses 2
	$(PYTEST) $(STAGED)/notebooks/[0-9][0-9]b_*.ipynb --perturb 1
	env -u OMP_NUM_THREADS '$(BIN)/python' tests/full.py --minutes 5
	for machine in $(MACHINES); do \
		echo "$$machine" && env $$machine $(PYTEST) tests $(STAGED) -m 'not nightly' $(WITHOUT_APPENDICES) --perturb 1 || exit 1; \
	done

full: $(READY) ## Make the kept runs at full scale again, those that fit this machine; as in: make full ARGS='--minutes 120'
	'$(BIN)/python' tests/full.py $(ARGS)

claims: $(READY) ## Count the claims of LESSON on seeds that no author has seen, as in: make claims LESSON=03_ocfl_temperature
	'$(BIN)/python' tests/robust.py notebooks/$(LESSON).ipynb --first 100 --seeds 5

# With the environment on the path of its terminals and kernels, so that `python` is the kit's there.
# In a container, the user is often root, whom JupyterLab refuses unless it is told
lab: $(READY) ## Open JupyterLab at the first notebook; options in ARGS, as in: make lab ARGS=--no-browser
	VIRTUAL_ENV='$(abspath .venv)' PATH="$$(cd '$(BIN)' && pwd):$$PATH" \
		'$(BIN)/jupyter' lab --notebook-dir . --LabApp.default_url /lab/tree/notebooks/00_start_here.ipynb \
		$$(test "$$(id -u)" -ne 0 || echo --allow-root) $(ARGS)

reset: ## Bring the lessons back as they were; what you changed is kept in data/runs/yours
	@kept=data/runs/yours/$$(date +%Y-%m-%d-%H-%M-%S); \
	git -c core.quotePath=off diff --no-renames --diff-filter=a --name-only HEAD -- ':(glob)notebooks/*.ipynb' | \
	while IFS= read -r lesson; do \
		if [ -f "$$lesson" ]; then \
			mkdir -p $$kept && cp "$$lesson" $$kept/ && echo "your copy: $$kept/$${lesson##*/}" || exit 1; fi; \
		git --literal-pathspecs restore --source=HEAD --staged --worktree "$$lesson" && echo "restored: $$lesson" || exit 1; done

bench: $(READY) ## Seconds per round of each engine and of a plain loop; many clients; a real federation
	'$(BIN)/python' tests/benchmark.py

notebooks: $(READY) ## Build and execute the notebooks from their sources, and the README's tables
	'$(BIN)/python' notebooks/src/build.py

book: $(READY) ## Write the notebooks, the pages and the reference as a static site into data/runs/book
	'$(BIN)/python' notebooks/src/book/build.py

dataset: $(READY) ## Write all run records as one Parquet file with its description into data/runs/dataset (it needs pyarrow)
	$(INSTALL) --quiet --constraint $(LOCK) pyarrow
	'$(BIN)/python' notebooks/src/dataset.py

# Of PyTorch's own packages, uv takes other files for UV_TORCH_BACKEND: these have no hashes
lock: $(READY) ## Renew the tested versions, and the hashes of their files (it needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --no-emit-index-url --no-annotate \
		--no-header --quiet --generate-hashes --upgrade --output-file .venv/lock
	{ grep '^#' requirements.lock; sed '/^ *--hash/d; s/ \\$$//' .venv/lock; } > .venv/plain
	{ grep '^#' requirements-hashed.lock; awk '/^[^ ]/ {bare = /^(torch|torchvision|triton)==/; if (bare) sub(/ \\$$/, "")} \
		!bare || /^[^ ]/' .venv/lock; } > .venv/hashed
	mv .venv/plain requirements.lock && mv .venv/hashed requirements-hashed.lock

clean: ## Remove the environment and data/runs but for yours (your lessons, downloads and the checkpoints of notebooks stay)
	rm -rf .venv
	if [ -d data/runs ]; then find data/runs -mindepth 1 -maxdepth 1 ! -name yours -exec rm -rf {} +; fi

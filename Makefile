# Needs python3 (3.11 to 3.13) with venv, and make. Everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST_ARGS ?= -n 2 --dist worksteal

.PHONY: demo test check gpu bench-solve bench-estimate bench-serving bench-simulate bench-pipelines bench-referee bench-promises bench-propose bench-sweep bench-experts bench-rl bench-fleet bench-place bench-cases bench-cache bench-topology bench-import bench-emitted bench-audit bench-workflow bench-training bench-overlap fuzz mutants snapshots figures clean

demo: $(VENV)/installed
	$(BIN)/planner solve examples/serve-qwen3-32b-h200.yaml -o plan.json
	$(BIN)/planner check plan.json

test: $(VENV)/installed-dev
	$(BIN)/pytest -q $(PYTEST_ARGS)

# Emitted commands under the engines' own code, where they are installed: VALIDATORS_HOME, ../shared/validators/setup.sh
.PHONY: test-launch
test-launch: $(VENV)/installed-dev
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/launch_matrix.py

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py
	$(BIN)/pytest -q $(PYTEST_ARGS)

# For a machine with a GPU and no network: runs on its own Python with torch, numpy, scipy and pyarrow.
gpu:
	@test -n "$(OUT)" || { echo "name a folder: make gpu OUT=DIR" >&2; exit 2; }
	$(PYTHON) benchmarks/gpu/run.py --out "$(OUT)" $(GPU_ARGS)

# Where ../shared/data is absent, traces and small samples are generated, on which no target is judged.
bench-solve: $(VENV)/installed
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/stated_times.py

bench-estimate: $(VENV)/installed
	$(BIN)/python benchmarks/estimate.py
	$(BIN)/python benchmarks/tails.py

bench-overlap: $(VENV)/installed
	$(BIN)/python benchmarks/overlap.py

bench-propose: $(VENV)/installed
	$(BIN)/python benchmarks/propose.py

bench-promises: $(VENV)/installed
	$(BIN)/python benchmarks/promises.py
	$(BIN)/python benchmarks/promise_bounds.py
	$(BIN)/python benchmarks/judge_coverage.py
	$(BIN)/python benchmarks/relaxations.py --quick

bench-simulate: $(VENV)/installed
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/simulate_distserve.py
	$(BIN)/python benchmarks/simulate_goodput.py
	$(BIN)/python benchmarks/simulate_policies.py
	$(BIN)/python benchmarks/simulate_elastic.py
	$(BIN)/python benchmarks/pipelines_simulated.py
	$(BIN)/python benchmarks/simulate_attention_ffn.py
	$(BIN)/python benchmarks/closed_loops.py ../shared/data/serving/measured.csv

bench-pipelines: $(VENV)/installed
	$(BIN)/python benchmarks/pipelines.py
	$(BIN)/python benchmarks/routed_queues.py
	$(BIN)/python benchmarks/decode_places.py
	$(BIN)/python benchmarks/token_times.py

bench-referee: $(VENV)/installed
	$(BIN)/python benchmarks/scheduler_referee.py

# QUICK=1: without the fits, around the costs before any fit
bench-serving: $(VENV)/installed-dev
	$(BIN)/python benchmarks/serving.py ../shared/data/serving $(if $(QUICK),--quick,--folds 4)
	$(BIN)/python benchmarks/serving_settings.py ../shared/data/serving/measured.csv
	$(BIN)/python benchmarks/serving_intervals.py ../shared/data/serving
	$(BIN)/python benchmarks/own_runs.py ../shared/data/serving $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/serving_picks.py ../shared/data/serving $(if $(QUICK),--unfitted)
	$(BIN)/python benchmarks/sealed_serving.py --open

bench-training: $(VENV)/installed
	$(BIN)/python benchmarks/estimate_equals_solve.py
	$(BIN)/python benchmarks/training_search.py
	$(BIN)/python benchmarks/training_nodes.py
	$(BIN)/python benchmarks/training_launches.py
	$(BIN)/python benchmarks/training_megascale.py
	$(BIN)/python benchmarks/training_at_scale.py
	$(BIN)/python benchmarks/training_recipes.py
	$(BIN)/python benchmarks/training.py ../shared/data/training
	$(BIN)/python benchmarks/training_nested.py ../shared/data/training
	$(BIN)/python benchmarks/sealed_training.py --open

bench-sweep: $(VENV)/installed
	$(BIN)/python benchmarks/sweep.py

bench-fleet: $(VENV)/installed
	$(BIN)/python benchmarks/fleet.py
	$(BIN)/python benchmarks/fleet_days.py

bench-place: $(VENV)/installed
	$(BIN)/python benchmarks/place.py

bench-cases: $(VENV)/installed
	$(BIN)/python benchmarks/cases_scored.py

bench-cache: $(VENV)/installed-dev
	$(BIN)/python benchmarks/cached_serving.py
	$(BIN)/python benchmarks/cached_serving_reference.py
	$(BIN)/python benchmarks/tier_policies.py
	$(BIN)/python benchmarks/cases_scored.py --only cache_

bench-topology: $(VENV)/installed
	$(BIN)/python benchmarks/topology.py

.PHONY: bench-multimodal
bench-multimodal: $(VENV)/installed
	$(BIN)/python benchmarks/module_splits.py
	$(BIN)/python benchmarks/pass_schedules.py
	$(BIN)/python benchmarks/sample_orders.py
	$(BIN)/python benchmarks/cases_scored.py --only mm_ lc_

bench-import: $(VENV)/installed
	$(BIN)/python benchmarks/imports.py

bench-emitted: $(VENV)/installed
	$(BIN)/python benchmarks/emitted.py

bench-audit: $(VENV)/installed
	$(BIN)/python benchmarks/audits.py

bench-workflow: $(VENV)/installed-dev
	$(BIN)/python benchmarks/workflow.py
	$(BIN)/python benchmarks/workflow_rag.py
	$(BIN)/python benchmarks/cases_scored.py --only workflow_ stage_ pipeline_

bench-experts: $(VENV)/installed
	$(BIN)/python benchmarks/experts.py

bench-rl: $(VENV)/installed
	$(BIN)/python benchmarks/rl_agentic.py
	$(BIN)/python benchmarks/rl_plans.py
	$(BIN)/python benchmarks/rl_coupled.py
	$(BIN)/python benchmarks/rl_launches.py
	$(BIN)/python benchmarks/rl.py ../shared/data/rl
	$(BIN)/python benchmarks/rl_rollouts.py ../shared/data/rl
	$(BIN)/python benchmarks/rl_fused.py ../shared/data/rl/flexfusion_instances.csv
	$(BIN)/python benchmarks/rl_measured.py ../shared/data/rl/measured.csv
	$(BIN)/python benchmarks/rl_public.py ../shared/data/rl/measured.csv

# The site of docs/, into build/site; a link that leads nowhere ends it.
.PHONY: docs
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "open build/site/index.html"

fuzz: $(VENV)/installed
	$(BIN)/python benchmarks/fuzz.py

mutants: $(VENV)/installed-dev
	$(BIN)/python benchmarks/mutants.py

snapshots: $(VENV)/installed
	$(BIN)/python benchmarks/snapshots.py

# Everything that shows answers, made again after a change of costs or of search; then read the difference.
figures: $(VENV)/installed-dev
	$(BIN)/python benchmarks/field_reference.py
	$(BIN)/python benchmarks/python_reference.py
	$(BIN)/python benchmarks/figures.py
	$(BIN)/pytest -q --update-golden $$(grep -rl --include='test_*.py' golden tests)
	$(BIN)/python benchmarks/snapshots.py --freeze

# Every command of every page, but for those that need a GPU, an engine or minutes.
.PHONY: commands
commands: $(VENV)/installed
	$(BIN)/python benchmarks/page_commands.py

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache *.egg-info

# pip is what venv makes last: where it is missing, an earlier attempt was cut short.
$(BIN)/pip:
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/installed

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	touch $@

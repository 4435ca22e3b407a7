# The commands of this repository. `make demo` and `make test` need nothing but Python >= 3.11, Java >= 17 and make;
# they create the environment in .venv, and bring it up to date when pyproject.toml or the kernel in C has changed.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LAYERS := tests/test_layers.py
# Tests that parse all our code, in one process that parses it once.
PARSING := $(LAYERS) tests/test_declared_packages.py
# Tests that say what is missing beside a change: a page, a table, a right, a row. They need no server.
COMPLETE := tests/test_monitoring.py tests/test_conf.py \
	$(addprefix tests/docs/test_, compare_page.py contributing.py install_page.py promises.py prose.py reference_pages.py snippets.py versions.py walks.py) \
	$(addprefix tests/docs/test_site.py::test_, \
		the_first_page_and_that_of_decisions_link_every_page \
		links_into_the_repository_lead_somewhere \
		anchors_of_links_into_the_repository_exist \
		make_targets_that_pages_name_exist \
		lists_are_lists_in_the_site_too) \
	tests/api/test_protocol_doc.py \
	tests/api/test_permissions.py::test_every_api_asks_for_a_right_or_needs_none \
	tests/log/test_log_config.py::test_every_key_says_what_it_is \
	tests/spark_connector/options/test_option_table.py \
	tests/spark_connector/options/test_write_options.py::test_every_declared_option_is_read \
	tests/spark_connector/loads/test_reading.py::test_each_option_is_kept_or_known_not_to_choose_or_change_records \
	tests/tools/test_spelling.py::test_every_refusal_that_names_an_argument_names_the_option_instead \
	$(addprefix tests/tools/test_main.py::test_, \
		every_command_that_talks_to_a_broker_finds_it_in_the_same_ways \
		every_help_has_examples_that_are_right \
		a_flag_has_no_value_in_any_help_and_no_line_wraps)
# Without bytecode: most modules are never imported, and those that are get compiled by who imports them first.
PIP    := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
PYTEST := $(BIN)/python -m pytest

# Test processes at a time: one more than cores, because tests often wait. Tests of one file stay in one of them, in the
# order that tests/conftest.py gives the files.
WORKERS ?= 3
WORKING := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The output of jobs that run at the same time, one job after the other. Make 3 on macOS cannot do that.
GROUPED := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Brokers, Spark's workers and commands start some hundred times: without bytecode each would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Spark's Python workers run in this environment, whatever python3 the PATH holds.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

# The PySpark of `make test-spark`. On the oldest one `make test` runs a read, a write, a stream and a load.
OLDEST_SPARK := 4.0.5
VERSION ?= $(OLDEST_SPARK)
CONNECTOR_TESTS := tests/spark_connector
SPARK_TESTS ?= $(CONNECTOR_TESTS) tests/zookeeper/test_java.py tests/zookeeper/test_embedded_server.py tests/faults/test_stream_kill.py
OLDEST_SPARK_TESTS := $(addprefix $(CONNECTOR_TESTS)/, \
	test_spark_batch.py::test_every_record_is_read_once \
	test_spark_write.py::test_every_column_arrives \
	test_spark_write.py::test_a_stream_repeats_a_batch_without_writing_it_twice \
	test_spark_stream.py \
	test_load.py::test_each_load_takes_what_is_new)

# What `make test-oldest` runs: all but the checks of the code.
OLDEST := $(VENV)/oldest
OLDEST_TESTS ?= tests --ignore=$(LAYERS)

# What `make costs` runs; all takes three quarters of an hour.
COSTS ?= tests

# The seed of what is drawn anew, by `make explore` and `make slow`; `make test` draws the same in every run.
ifndef SEED
SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
endif
EXPLORING := --hypothesis-profile=explore --hypothesis-seed=$(SEED)

.PHONY: help demo test costs prepared test-spark test-oldest check bench slow explore format docs pictures reference notebooks mutants dist clean preflight

help:
	@echo "make demo    install, then run the demo (real flight records through the broker into Spark)"
	@echo "make test    install, then run every check and test"
	@echo "make test-spark VERSION=4.0.5   the connector's tests on that PySpark (4.0.5 to 4.3.0)"
	@echo "make test-oldest  the tests on the oldest packages that pyproject.toml admits"
	@echo "make check   lint, format, types, layers, and what is missing beside a change"
	@echo "make costs COSTS=tests/log  the tests in one process, and what each file costs of the processor"
	@echo "make slow    the many-round tests (kill -9 of broker, driver and worker), and make explore"
	@echo "make explore SEED=17  the random tests with other, and ten times as many, examples; without SEED with a new one"
	@echo "make bench   measure; the result goes to docs/performance.md"
	@echo "make format  format the code and fix what the linter can"
	@echo "make docs    build the documentation site into build/site; a broken link fails it"
	@echo "make pictures  take the pictures of the console for the docs anew; some minutes"
	@echo "make reference  write the generated pages of docs/reference from the code"
	@echo "make notebooks  run the notebooks and store their outputs"
	@echo "make mutants  change the code and see whether the tests notice; an hour"
	@echo "make dist    sdist and wheel for upload in dist/, checked by an installation of the wheel"
	@echo "make clean   remove the environment, caches and test output"

demo: $(VENV)/.demo-installed
	$(BIN)/pykafka demo

# mypy needs one core and the tests on the oldest Spark often wait, so they run at the same time. What `check` has
# tested is not tested again. `prepared` makes once
# what each test process or Spark would make for itself.
test: export PYTHONHASHSEED := 0
test: $(VENV)/.test-installed
	$(MAKE) --jobs=2 $(GROUPED) check test-spark prepared VERSION=$(OLDEST_SPARK) SPARK_TESTS="$(OLDEST_SPARK_TESTS)" WORKERS=2
	$(PYTEST) $(WORKING) $(addprefix --ignore=,$(PARSING)) $(addprefix --deselect=,$(COMPLETE))

prepared: $(VENV)/.test-installed
	@$(PYTEST) --collect-only -qqq
	@$(BIN)/python -m tests.support.spark_home
	@$(BIN)/python -m tests.support.kerberos

test-spark: $(VENV)/spark-$(VERSION)/.installed
	$(VENV)/spark-$(VERSION)/bin/python -m pytest $(WORKING) $(SPARK_TESTS)

test-oldest: $(OLDEST)/.installed
	PYSPARK_PYTHON=$(CURDIR)/$(OLDEST)/bin/python $(OLDEST)/bin/python -m pytest $(WORKING) $(OLDEST_TESTS)

check: $(VENV)/.test-installed
	@failed=; \
	run() { name=$$1; shift; echo "--- $$name"; "$$@" || failed="$$failed, $$name"; }; \
	run "ruff check" $(BIN)/ruff check .; \
	run "ruff format" $(BIN)/ruff format --check --quiet .; \
	run "tests" $(PYTEST) -q $(PARSING) $(COMPLETE); \
	run "mypy" $(BIN)/mypy; \
	test -z "$$failed" || { echo "failed: $${failed#, }"; exit 1; }

slow: $(VENV)/.test-installed
	$(PYTEST) -m slow $(EXPLORING)
	$(MAKE) explore SEED=$(SEED)
	$(MAKE) test-oldest

costs: export PYTHONHASHSEED := 0
costs: $(VENV)/.test-installed
	$(PYTEST) -q -p tests.support.costs $(COSTS)

explore: $(VENV)/.test-installed
	$(PYTEST) $(WORKING) -m "(hypothesis or seeded) and not slow" $(EXPLORING)

bench: $(VENV)/.bench-installed
	$(BIN)/python -m bench

format: $(VENV)/.test-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs-installed
	$(BIN)/python docs/images/draw.py
	PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(VENV)/.test-installed
	$(BIN)/python -m tests.support.reference_pages

pictures: $(VENV)/.test-installed
	$(BIN)/python docs/images/draw.py --console

mutants: $(VENV)/.mutants-installed
	$(BIN)/python -m tests.support.mutants

notebooks: $(VENV)/.test-installed
	$(BIN)/python -m tests.support.notebooks

dist: $(VENV)/.dist-installed
	.ci/dist $(BIN)/python dist

clean:
	rm -rf $(VENV) build dist *.egg-info broker/records/_kernel*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Another PySpark in an environment of its own; all else is found in $(VENV), whose packages come after its own.
FIND_PACKAGES := import sysconfig; packages = sysconfig.get_path("purelib")
.PRECIOUS: $(VENV)/spark-%/.installed
$(VENV)/spark-%/.installed: | $(VENV)/.test-installed
	@echo "installing pyspark $* into $(@D)"
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(BIN)/python -m pip --disable-pip-version-check --python $(@D)/bin/python install --quiet --no-compile pyspark==$*
	@$(BIN)/python -c '$(FIND_PACKAGES); print(f"import site; site.addsitedir({packages!r})")' \
		> "$$($(@D)/bin/python -c '$(FIND_PACKAGES); print(packages)')/shared.pth"
	@touch $@

# Every package that pyproject.toml names in the oldest version that it admits; what those need, in the newest.
$(OLDEST)/.installed: pyproject.toml $(wildcard broker/records/_kernel*.[ch]) | $(VENV)/.oldest-installed
	@echo "installing the oldest packages into $(OLDEST)"
	@rm -rf $(OLDEST)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(OLDEST)
	@$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct --editable '.[test]'
	@touch $@

# One stamp per set of packages, so that the demo waits for nothing only the tests need.
$(VENV)/.%-installed: pyproject.toml $(wildcard broker/records/_kernel*.[ch]) | preflight
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv --upgrade-deps $(VENV); }
	@echo "installing the packages of '$*' into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@

preflight:
	@.ci/preflight $(PYTHON)

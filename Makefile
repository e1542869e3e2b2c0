# The interpreter is found by tools/find-python; `make PYTHON=python3.13` names one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

CLASSES := .cache/spark-classes.jsa

.PHONY: demo test test-all test-core test-oldest explore lint bench soak coverage docs pictures site dist clean

# Import a conversation and do everything with it: `make demo`, or `make demo LOGS=path` for real logs.
demo: $(READY)
	$(BIN)/cablestore demo $(if $(LOGS),--logs "$(LOGS)")

# Python keeps its bytecode, also where the environment asks for none: the tests start a thousand processes.
test test-all explore soak coverage: export PYTHONDONTWRITEBYTECODE :=

# Stores sync what they write. Where memory is a file system with enough space, that takes no time.
MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 8000000 2>/dev/null && echo /dev/shm)
ifneq ($(MEMORY),)
test test-all explore coverage: export TMPDIR := $(MEMORY)
endif

# Java's classes of Spark, half of the work of a small job.
$(CLASSES): $(READY) tests/support/class_archive.py
	$(BIN)/python tests/support/class_archive.py $@

# Every promise once: some minutes. Four at a time on two cores, because some wait. Java need not optimize what runs
# for seconds.
test: export SPARK_SUBMIT_OPTS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
test: $(READY)
	$(BIN)/pytest -n 4 --dist worksteal --tier short

# Five at a time, whatever the cores: most wait for a clock, a peer or a torrent. A file is run by one process, so that
# what its tests share, as Spark, starts once.
test-all: export SPARK_SUBMIT_OPTS := "-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)" -Xlog:disable
test-all: $(READY) $(CLASSES)
	$(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The core needs no library that a new Python may lack.
CORE_TESTS := tests/index/test_order.py tests/index/test_parts.py tests/store tests/protocol/test_post_types.py \
	tests/views tests/search tests/cli/test_cli.py tests/cli/test_bad_input.py tests/cli/test_completion.py \
	tests/cli/test_serve_config.py
test-core: $(READY)
	$(BIN)/pytest -n 3 --dist worksteal --tier short $(CORE_TESTS)

# The core with the oldest versions of its dependencies that pyproject.toml allows, in an environment of its own. Its
# tests use some of the extras.
OLDEST := build/oldest
test-oldest:
	python=$$(tools/find-python $(PYTHON)) && "$$python" -m venv --clear $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
		--editable '.[archive,chat,cli,search,storage]'
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python hypothesis packaging pyte pytest pytest-timeout \
		pytest-xdist
	$(OLDEST)/bin/pytest -n 2 --tier short $(CORE_TESTS)

# The short tier with other random values than usual. `make explore SEED=...` repeats a run.
explore: SEED := $(shell date +%s)
explore: $(READY)
	@echo "make explore SEED=$(SEED)"
	CABLESTORE_SEED=$(SEED) $(BIN)/pytest -n 3 --dist worksteal --tier short --hypothesis-seed $(SEED)

bench: $(READY)
	$(BIN)/python bench/run.py

# A week of two servers in an hour. Then thousands of histories, 200 kills, ten million fuzzed inputs: hours.
soak: $(READY)
	$(BIN)/python bench/week.py
	CABLESTORE_SOAK=1 $(BIN)/pytest -n 2 --dist worksteal --timeout 7200

# How much of the product the short tier runs: a table, and build/coverage/index.html. Tests of processes of another user
# fail here, because these cannot write what they ran.
coverage: $(READY)
	-$(BIN)/pytest -n 2 --dist worksteal --tier short --cov --cov-report=html --cov-report=term:skip-covered

# Write the generated tables of the documents.
docs: $(READY)
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/dashboard.py

# Draw the pictures of the documents, one of them from a run of the demo, some from the tables of an invented community, some of the chat client.
pictures: $(READY)
	$(BIN)/python docs/img/make.py
	$(BIN)/python docs/img/year.py
	$(BIN)/python docs/img/chat.py
	$(BIN)/python docs/img/store_page.py

# Build the documents as a site: build/site/index.html.
site: $(READY)
	$(BIN)/python -m zensical build --clean --strict

# Build the sdist and the wheel, check them, and try the wheel in an empty environment.
dist: $(READY)
	$(BIN)/python tools/dist.py dist
	$(BIN)/python -m venv --clear build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[cli]"
	PATH="$(CURDIR)/build/empty/bin:$$PATH" tools/small-round

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache .coverage*

$(READY): pyproject.toml setup.py cablestore/_signatures.c
	python=$$(tools/find-python $(PYTHON)) && "$$python" -m venv $(VENV)
	for name in views reindex; do test -L cablestore/$$name || ln -s ../$$name cablestore/$$name; done # sdists have no links
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@

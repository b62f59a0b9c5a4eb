# make demo, make test and make lint each set up what they need in $(VENV) first.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test lint format clean

demo: $(VENV)/.installed
	$(BIN)/python -m skvfusion demo $(ARGS)

test: $(VENV)/.installed
	# A process per core, with one thread of torch's each: as many threads in each would fight for the cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	# compat: by path, or a script beside a checkout called skvfusion would import the checkout as an empty package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--config-settings editable_mode=compat -e ".[plot,test,lint]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info

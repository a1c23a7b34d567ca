# Every target works on a machine with Python >= 3.11, pip and make; `.venv` is made where it is missing.
PYTHON ?= python3
RUN := .venv/bin/python
READY := .venv/.ready
UV := $(if $(wildcard $(RUN)),$(RUN),$(PYTHON)) -m uv
TOOL := $(UV) tool run

.DEFAULT_GOAL := help
.PHONY: help setup demo web web-demo pages setup-tests test test-all check bench docs screenshots lock sbom audit release clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or later is needed, {sys.executable} is {sys.version.split()[0]}; name another with make PYTHON=...")'
	@test -x $(RUN) || { echo "making .venv (8 GB, once)"; $(PYTHON) -m venv --without-pip .venv; }
	@$(RUN) -m uv --version >/dev/null 2>&1 || $(PYTHON) -m pip --quiet --disable-pip-version-check --python $(RUN) install "uv>=0.9"
	$(RUN) -m uv pip install --python $(RUN) --compile-bytecode --require-hashes --requirement requirements.lock
	$(RUN) -m uv pip install --python $(RUN) --no-deps --editable .
	@touch $(READY)

setup: $(READY)  ## make .venv with the locked versions

demo: setup  ## train on the embedded data set, score it, write a page of attention maps (about 3 minutes)
	$(RUN) -m showattendtell.demo

WEB := runs/web-demo
PORT := 8000

web: setup  ## build the web page of the bundled model (needs npm)
	rm -rf $(WEB)
	$(RUN) -m showattendtell.export checkpoint=flickr8k_soft 'formats=[web]' precision=float16 output=$(WEB)

web-demo: web  ## the same, and serve it (PORT=8000)
	@echo "open the address of the next line in a browser; Ctrl-C ends the server"
	$(RUN) -u -m http.server $(PORT) --bind 127.0.0.1 --directory $(WEB)/web

TEST_PROGRAMS := chromium-headless-shell postgresql fonts-wqy-zenhei

setup-tests:  ## install Chromium, PostgreSQL and a Chinese font, without which some tests are skipped (needs root and apt-get)
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
	  echo "as root, with your package manager, install: $(TEST_PROGRAMS); Chromium also by: $(RUN) -m playwright install chromium"; \
	elif ! dpkg --status $(TEST_PROGRAMS) > /dev/null 2>&1; then \
	  apt-get update -qq; \
	  for program in $(TEST_PROGRAMS); do \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $$program > /dev/null \
	      || echo "apt-get cannot install $$program; tests that need it are skipped"; \
	  done; \
	fi

test test-all: export PYTHONDONTWRITEBYTECODE =  # the many processes that tests start then compile a module once

test: setup  ## the tests that take minutes at most
	$(RUN) -m pytest -n 2 --dist worksteal -m "not slow"

test-all: setup  ## every test
	$(RUN) -m pytest -n 2 --dist worksteal

check: setup  ## lint, format and types
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

bench: setup  ## every speed figure with its goal (10 to 20 minutes)
	$(RUN) -m benchmarks

docs: setup  ## the documentation as a site, with every command and setting
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict
	@echo "open site/index.html in a browser"

pages: docs web  ## the documentation, with the web page in site/demo, for a static host such as GitHub Pages
	rm -rf site/demo
	cp -r $(WEB)/web site/demo

screenshots: setup  ## the pictures of pages in docs/figures (10 minutes; needs Chromium)
	$(RUN) docs/screenshots.py

lock: setup  ## write requirements.lock from pyproject.toml
	$(RUN) -m uv pip compile pyproject.toml --universal --python-version 3.11 \
	  --extra clip --extra dashboard --extra dev --extra docs --extra joblib --extra onnx --extra postgresql --extra ray \
	  --extra heic --extra serve --extra slurm --extra sweeps --extra tensorboard --extra weights \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade --quiet --output-file requirements.lock

sbom:  ## write sbom.json, a CycloneDX list of the locked packages with their hashes
	$(TOOL) --from "cyclonedx-bom==7.5.0" cyclonedx-py requirements requirements.lock \
	  --pyproject pyproject.toml --output-reproducible --output-format JSON --output-file sbom.json

audit:  ## look the locked packages up among known vulnerabilities (needs pypi.org)
	$(TOOL) "pip-audit==2.10.1" --strict --disable-pip --require-hashes --requirement requirements.lock

release:  ## write dist/, what is published as VERSION=0.1.0 (needs uv)
	@grep -q '^## \[$(VERSION)\] - 20' CHANGELOG.md || { echo "CHANGELOG.md has no day for version '$(VERSION)'"; exit 1; }
	rm -rf dist
	$(UV) build --quiet
	$(TOOL) "twine==7.0.0" check --strict dist/*
	@test -f dist/showattendtell-$(VERSION).tar.gz || { echo "pyproject.toml has another version"; exit 1; }

clean:  ## remove .venv and what the runs wrote
	rm -rf .venv runs outputs dist site sbom.json

# The two commands of the README are `make demo` and `make test`. `make help` prints them all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# ansible-core 2.19 runs on these. The first one that is here is taken.
PYTHONS := 3.11 3.12 3.13
VENV := .venv
BUILD := .build
STAGES := lint unit playbooks browser docs-lint changelog-lint sanity artifact matrix
# These start simulated hosts and mostly wait for them, so they run beside the stages above: the first one alone, then
# two at a time, the long ones first.
LAB_STAGES := kept-lab fleet multi_node roles awx molecule tune judge
# Of the 20 architectures that real vLLM judges one for each kind of KV cache.
JUDGE := llama or gemma3 or gpt_oss or deepseek_v3 or qwen3_next or jamba or mimo_v2_flash
# Pythons of the hosts and of the controller.
SANITY_PYTHONS := 3.8 3.9 3.10 3.11 3.12 3.13
# ansible-core release / the Python that it is tested with. 2.19 is in .venv.
CORES := 2.16/3.11 2.17/3.11 2.18/3.11 2.20/3.12 2.21/3.13

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export LC_ALL := C.UTF-8
export PYTHONUNBUFFERED := 1
unexport PYTHONPATH
unexport ANSIBLE_COLLECTIONS_PATH

##@ Use

.PHONY: demo
demo: venv ## Bring up the simulated fleet, deploy a real vLLM on it, ask it for a completion
	@echo "=== demo 1/2: the lab (two simulated GPU hosts)"
	@ansible-playbook playbooks/lab_up.yml
	@echo "=== demo 2/2: deploy vLLM on it"
	@ansible-playbook playbooks/deploy_vllm.yml

.PHONY: demo-down
demo-down: venv ## Take the simulated fleet away again
	@ansible-playbook playbooks/lab_down.yml

.PHONY: venv
venv: $(VENV)/run.done ## Make .venv with what the playbooks need (requirements/run.txt)

$(VENV)/run.done: requirements/run.txt tools/ci/venv.sh
	@tools/ci/venv.sh $(VENV) requirements/run.txt $(PYTHONS)
	@touch $@

##@ Test

.PHONY: test
test: venv-test ## Everything below, those with simulated hosts beside the others, with a table at the end
	@status=0; python tools/ci/stages.py $(STAGES) --beside $(LAB_STAGES) || status=$$?; \
		ansible-playbook --inventory tests/integration/kept playbooks/lab_down.yml; exit $$status

.PHONY: venv-test
venv-test: $(VENV)/test.done ## Add the test tools to .venv (requirements/test.txt)

$(VENV)/test.done: requirements/test.txt tools/ci/venv.sh $(VENV)/run.done
	@tools/ci/venv.sh $(VENV) requirements/test.txt $(PYTHONS)
	@touch $@

.PHONY: lint yamllint ruff mypy shellcheck ansible-lint
lint: venv-test ## yamllint, ruff, mypy, shellcheck, ansible-lint (profile production)
	@$(MAKE) --keep-going yamllint ruff mypy shellcheck ansible-lint

yamllint: venv-test
	@echo "lint: yamllint" && yamllint --strict .

ruff: venv-test
	@echo "lint: ruff" && ruff check --quiet . && ruff format --quiet --check --diff .

mypy: venv-test
	@echo "lint: mypy" && mypy

shellcheck: venv-test
	@echo "lint: shellcheck" && tools/ci/shell_files.sh | xargs --no-run-if-empty shellcheck

ansible-lint: venv-test
	@echo "lint: ansible-lint" && ansible-lint --nocolor --format pep8

.PHONY: unit
unit: venv-test ## pytest of tests/unit
	@pytest

.PHONY: playbooks
playbooks: venv-test ## The playbooks that plan, with recorded facts of hosts that do not exist
	@pytest tests/integration/planning

.PHONY: browser
browser: venv-test ## The page of the fleet in a headless Chromium, which is installed on Debian if it is missing
	@tests/browser/install.sh
	@pytest tests/browser

.PHONY: docs-lint
docs-lint: venv-test ## antsibull-docs: documentation of plugins and roles, docs/docsite
	@antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=self .

.PHONY: changelog-lint
changelog-lint: venv-test ## antsibull-changelog: fragments and configuration
	@antsibull-changelog lint

.PHONY: sanity
sanity: venv-test ## ansible-test sanity, on the Pythons of the hosts and of the controller
	@tools/ci/sanity.sh $(SANITY_PYTHONS)

.PHONY: artifact
artifact: venv-test ## Build the collection, install it elsewhere and use it from there
	@tools/ci/artifact.sh

.PHONY: matrix
matrix: venv-test ## Unit tests and playbook syntax on ansible-core 2.16, 2.17, 2.18, 2.20, 2.21
	@tools/ci/matrix.sh $(CORES)

.PHONY: kept-lab
kept-lab: venv-test # Without it each of the next stages would start the Docker engine and build the images anew.
	@ansible-playbook --inventory tests/integration/kept playbooks/lab_up.yml

.PHONY: molecule
molecule: venv-test ## The scenario default: a real vLLM on a simulated host, twice, verified
	@MOLECULE_GLOB='molecule/*/molecule.yml' molecule test --scenario-name default

.PHONY: fleet
fleet: venv-test ## The scenario fleet: three hosts with the replay engine, and every fault that a deployment must survive
	@MOLECULE_GLOB='molecule/*/molecule.yml' molecule test --scenario-name fleet

.PHONY: multi_node
multi_node: venv-test ## The scenario multi_node: one engine over two hosts, all members or none
	@MOLECULE_GLOB='molecule/*/molecule.yml' molecule test --scenario-name multi_node

.PHONY: roles
roles: venv-test ## The roles vllm_host, vllm_image and vllm_model on simulated hosts, with registries that have faults
	@ansible-playbook --inventory tests/integration/hosts playbooks/lab_up.yml
	@GPUFLEET_INVENTORY=$(CURDIR)/tests/integration/hosts pytest tests/integration/vllm_host tests/integration/vllm_image \
		tests/integration/vllm_model
	@ansible-playbook --inventory tests/integration/hosts playbooks/lab_down.yml

.PHONY: tune
tune: venv-test ## The scenario tune: the ladder and tune_vllm, with the replay engine
	@MOLECULE_GLOB='molecule/*/molecule.yml' molecule test --scenario-name tune

.PHONY: awx
awx: venv-test ## What extensions/awx writes to AWX, and each job template on simulated hosts as AWX would run it
	@pytest tests/integration/awx

.PHONY: judge
judge: venv-test ## Real vLLM judges the catalogue of arguments and the KV cache arithmetic (all of it: make judge JUDGE=)
	@ansible-playbook --inventory tests/integration/inventory playbooks/lab_up.yml
	@GPUFLEET_VLLM_PYTHON=$(CURDIR)/tools/ci/lab_python.sh pytest tests/integration/catalogue
	@GPUFLEET_VLLM_PYTHON=$(CURDIR)/tools/ci/lab_python.sh pytest tests/integration/kv_judge -k "$(JUDGE)"
	@ansible-playbook --inventory tests/integration/inventory playbooks/lab_down.yml

.PHONY: docs
docs: venv ## The documentation of plugins and roles as a site, .build/docs/html/index.html (make test only lints it)
	@tools/ci/docs.sh $(BUILD)/docs $(PYTHONS)

.PHONY: bench
bench: venv-test ## Measurements of tests/bench, one after the other
	@for script in tests/bench/*.py; do echo "bench: $$script"; PYTHONPATH=.collections python "$$script"; done

##@ Maintain

.PHONY: lock
lock: venv-test ## Write the lock files from requirements/*.in (all newest: make lock LOCK_FLAGS=--upgrade)
	@tools/ci/lock.sh "$(CORES)" $(LOCK_FLAGS)

.PHONY: changelog
changelog: venv-test ## Write CHANGELOG.md for the version of galaxy.yml from changelogs/fragments
	@antsibull-changelog release --update-existing --reload-plugins

.PHONY: clean
clean: ## Remove .venv, build folders and caches (not the lab: make demo-down)
	@rm -rf $(VENV) $(BUILD) .ansible .cache .mypy_cache .pytest_cache .ruff_cache tests/output gpufleet-vllm-*.tar.gz
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## Print this
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z_-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

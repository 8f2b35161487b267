# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold between the data of extensions/awx and the rest of the repository."""

from __future__ import annotations

import json
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from awx_data import (
    CONFIGURATION,
    EXTENSION,
    PROGRAMS,
    PROJECT,
    ROOT,
    SPECIFICATIONS,
    TEMPLATES,
    load,
    options,
    survey_of,
)

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._variables import faults_of

WORKFLOWS = CONFIGURATION["controller_workflows"]
QUESTIONS = [(name, question) for name, template in TEMPLATES.items() for question in survey_of(template)]
INJECTED = [
    (kind["name"], variable)
    for kind in CONFIGURATION["controller_credential_types"]
    for variable in kind["injectors"]["extra_vars"]
]
SURVEY_TYPES = {"str": "text", "int": "integer", "float": "float", "bool": "multiplechoice", "list": "multiselect"}


def imported(template: dict) -> str | None:
    """The playbook of the collection that a job template runs."""
    (play,) = load(PROJECT / template["playbook"])
    return play.get("import_playbook")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_playbook_of_a_template_exists(name):
    target = imported(TEMPLATES[name])
    if target:
        namespace, collection, playbook = target.split(".")
        assert (namespace, collection) == ("gpufleet", "vllm")
        assert (ROOT / f"playbooks/{playbook}.yml").is_file(), target


def test_no_job_is_sliced_and_none_runs_beside_itself():
    assert {template["job_slice_count"] for template in TEMPLATES.values()} == {1}
    assert {template["allow_simultaneous"] for template in TEMPLATES.values()} == {False}
    assert [workflow["allow_simultaneous"] for workflow in WORKFLOWS] == [False]


def test_what_a_template_names_is_there():
    names = {kind: {each["name"] for each in CONFIGURATION[f"controller_{kind}"]} for kind in CONFIGURATION_KINDS}
    for template in TEMPLATES.values():
        assert template["project"] in names["projects"]
        assert template["inventory"] in names["inventories"]
        assert template["execution_environment"] in names["execution_environments"]
        assert set(template["credentials"]) <= names["credentials"]
        assert set(template["labels"]) <= names["labels"]
    types = {kind["name"] for kind in CONFIGURATION["controller_credential_types"]} | {"Machine"}
    assert {credential["credential_type"] for credential in CONFIGURATION["controller_credentials"]} <= types


CONFIGURATION_KINDS = ("projects", "inventories", "execution_environments", "credentials", "labels")


def test_what_changes_hosts_is_labelled():
    changing = {name for name, each in TEMPLATES.items() if "changes GPU hosts" in each["labels"]}
    assert set(TEMPLATES) - changing == {"vLLM: plan", "vLLM: smoke test", "vLLM: diagnose"}


@pytest.mark.parametrize(("name", "question"), QUESTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_question_is_about_an_option_of_its_type(name, question):
    option = options("vllm")[question["variable"]]
    assert question["type"] == SURVEY_TYPES[option["type"]]
    default = str(option["default"]).lower() if option["type"] == "bool" else option["default"]
    assert question["default"] == ("" if option["type"] == "list" else default)
    if "choices" in option:
        assert question["choices"] == [str(each) for each in option["choices"]]


@pytest.mark.parametrize(("name", "question"), QUESTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_answers_are_taken_also_as_texts(name, question):
    """AWX hands numbers on as they were typed into a launch by its API or its command line: as texts."""
    variable, kind, choices = question["variable"], question["type"], question.get("choices")
    numbers = {"integer": ["8", "0", 8], "float": ["8", "0.5", 8.0], "text": ["8", "why not"]}
    answers = {**numbers, "multiplechoice": choices, "multiselect": [choices, [choices and choices[0]]]}
    for answer in answers[kind]:
        assert faults_of({variable: options("vllm")[variable]}, {variable: answer}) == [], answer


def test_surveys_are_those_of_the_argument_specification():
    written = subprocess.run(
        [PROGRAMS / "python", ROOT / "tools/awx/surveys.py"], check=True, capture_output=True, text=True
    )
    file = EXTENSION / "config/surveys.yml"
    assert written.stdout == file.read_text(encoding="utf-8"), f"python tools/awx/surveys.py > {file.relative_to(ROOT)}"


@pytest.mark.parametrize(("name", "variable"), INJECTED)
def test_what_a_credential_gives_is_read(name, variable):
    known = {each for role in SPECIFICATIONS for each in options(role)}
    projects = "".join(path.read_text(encoding="utf-8") for path in PROJECT.glob("*.yml"))
    assert variable in known or re.search(rf"\b{variable}\b", projects), name


def test_secret_fields_are_secret():
    fields = [field for kind in CONFIGURATION["controller_credential_types"] for field in kind["inputs"]["fields"]]
    assert {field["id"] for field in fields if field.get("secret")} == {"api_key", "token", "password"}
    assert {field["type"] for field in fields} == {"string"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each["name"])
def test_a_workflow_has_no_cycle_and_no_loose_end(workflow):
    nodes = {node["identifier"]: node for node in workflow["simplified_workflow_nodes"]}
    following = {name: {*n.get("success_nodes", []), *n.get("failure_nodes", [])} for name, n in nodes.items()}
    order = list(TopologicalSorter(following).static_order())[::-1]  # raises CycleError
    assert set(order) == set(nodes)
    assert [name for name in nodes if name not in set().union(*following.values())] == ["plan"]
    assert {n["unified_job_template"] for n in nodes.values() if "approval_node" not in n} <= set(TEMPLATES)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each["name"])
def test_nothing_is_deployed_before_the_approval_and_each_failure_is_undone(workflow):
    nodes = {node["identifier"]: node for node in workflow["simplified_workflow_nodes"]}
    (approval,) = (name for name, node in nodes.items() if "approval_node" in node)
    before = [name for name, node in nodes.items() if approval in node.get("success_nodes", [])]
    assert [nodes[name]["unified_job_template"] for name in before] == ["vLLM: plan"]
    deploying = [name for name, node in nodes.items() if node.get("unified_job_template") == "vLLM: deploy"]
    reached = {to for node in nodes.values() for to in node.get("success_nodes", [])}
    assert deploying == ["canary", "fleet"] and set(deploying) <= reached
    for name in [*deploying, "smoke"]:
        assert nodes[name]["failure_nodes"] == ["undo"]
    assert TEMPLATES["vLLM: undo rollout"]["playbook"] == "undo_rollout.yml"


def test_the_groups_of_the_example_are_constructed():
    listed = subprocess.run(
        [PROGRAMS / "ansible-inventory", "-i", PROJECT / "inventory", "--list"], check=True, capture_output=True
    )
    inventory = json.loads(listed.stdout)
    assert len(inventory["vllm"]["hosts"]) == 3
    assert inventory["vllm_canary"]["hosts"] == ["gpu01.example.com"]
    assert inventory["vllm_l4"]["hosts"] == ["gpu03.example.com"]
    variables = inventory["_meta"]["hostvars"]
    names = {each["name"] for host in variables.values() for each in host["vllm_instances"]}
    assert names == set(CONFIGURATION["fleet_instances"])
    limits = [node["limit"] for each in WORKFLOWS for node in each["simplified_workflow_nodes"] if "limit" in node]
    assert set(limits) <= set(inventory)
    (source,) = CONFIGURATION["controller_inventory_sources"]
    assert (PROJECT / source["source_path"]).is_dir()


def test_the_data_is_in_the_shapes_of_infra_aap_configuration():
    """Only variables that it knows, and settings with a prefix of their own."""
    known = {
        "controller_labels",
        "controller_credential_types",
        "controller_credentials",
        "controller_execution_environments",
        "controller_projects",
        "controller_inventories",
        "controller_inventory_sources",
        "controller_templates",
        "controller_workflows",
    }
    assert {name for name in CONFIGURATION if not name.startswith("fleet_")} == known


def test_the_files_that_configure_reads_are_all_that_there_are():
    (play,) = load(EXTENSION / "configure.yml")
    assert {Path(file).name for file in play["vars_files"]} == {
        path.name for path in (EXTENSION / "config").glob("*.yml")
    }

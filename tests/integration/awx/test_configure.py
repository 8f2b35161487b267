# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""configure.yml against an API that behaves as AWX's: what is there afterwards, a second run, and what AWX refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from awx_data import CONFIGURATION, EXTENSION, PROJECT, ROOT, TEMPLATES, load, run
from fake_awx import PASSWORD, USER, Awx, served

SECRETS = {
    "FLEET_SSH_PRIVATE_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret-of-ssh\n-----END OPENSSH PRIVATE KEY-----\n",
    "FLEET_VLLM_API_KEY": "secret-of-vllm",
    "FLEET_HUB_TOKEN": "secret-of-the-hub",
    "FLEET_REGISTRY_USER": "robot",
    "FLEET_REGISTRY_TOKEN": "secret-of-the-registry",
}
TOLD = ("secret-of-ssh", "secret-of-vllm", "secret-of-the-hub", "secret-of-the-registry", PASSWORD)


def configure(url: str, *arguments: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
    login = {"CONTROLLER_HOST": url, "CONTROLLER_USERNAME": USER, "CONTROLLER_PASSWORD": password}
    command = ("ansible-playbook", "--inventory", "localhost,", f"{EXTENSION}/configure.yml", *arguments)
    return run(*command, ANSIBLE_CONFIG=f"{ROOT}/ansible.cfg", **login, **SECRETS)


def changed(result: subprocess.CompletedProcess[str]) -> int:
    return sum(map(int, re.findall(r"changed=(\d+)", result.stdout)))


@pytest.fixture(scope="module", name="awx")
def make_awx() -> Iterator[tuple[Awx, str, subprocess.CompletedProcess[str]]]:
    """An AWX to which the data was applied: its state, its address, and the run that did it."""
    awx = Awx(PROJECT)
    with served(awx) as url:
        result = configure(url, "-vvv")
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr
        yield awx, url, result


def test_every_object_is_there(awx):
    state, _url, _result = awx
    for kind, variable in {
        "credential_types": "controller_credential_types",
        "credentials": "controller_credentials",
        "labels": "controller_labels",
        "execution_environments": "controller_execution_environments",
        "projects": "controller_projects",
        "inventories": "controller_inventories",
        "inventory_sources": "controller_inventory_sources",
        "job_templates": "controller_templates",
        "workflow_job_templates": "controller_workflows",
    }.items():
        names = {each["name"] for each in state.objects[kind].values()} - {"Machine"}
        assert names == {each["name"] for each in CONFIGURATION[variable]}, kind


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_job_template_is_as_the_data_says(awx, name):
    state, _url, _result = awx
    wanted, there = TEMPLATES[name], state.named("job_templates", name)
    for key in ("description", "playbook", "forks", "job_slice_count", "timeout", "ask_limit_on_launch"):
        assert there[key] == wanted[key], key
    assert there["job_slice_count"] == 1
    assert json.loads(there["extra_vars"]) == wanted.get("extra_vars", {})
    assert state.linked("job_templates", name, "credentials") == sorted(wanted["credentials"])
    assert state.linked("job_templates", name, "labels") == sorted(wanted["labels"])


def test_surveys_offer_the_instances_of_the_fleet(awx):
    state, _url, _result = awx
    survey = state.surveys[state.named("job_templates", "vLLM: remove")["id"]]
    assert survey["spec"][0]["choices"] == CONFIGURATION["fleet_instances"]
    assert state.named("job_templates", "vLLM: plan")["id"] not in state.surveys


def test_the_injectors_arrive_as_templates_of_awx(awx):
    state, _url, _result = awx
    injectors = state.named("credential_types", "vLLM API key")["injectors"]
    assert injectors == {"extra_vars": {"vllm_api_key": "{{ api_key }}"}}
    assert state.named("credentials", "Key of the vLLM endpoints")["inputs"] == {"api_key": "secret-of-vllm"}


def test_the_workflow_is_linked_as_the_data_says(awx):
    state, _url, _result = awx
    (workflow,) = CONFIGURATION["controller_workflows"]
    for node in workflow["simplified_workflow_nodes"]:
        for links in ("success_nodes", "failure_nodes"):
            there = state.linked("workflow_job_template_nodes", node["identifier"], links)
            assert there == sorted(node.get(links, [])), (node["identifier"], links)
    approval = state.lookup(state.named("workflow_job_template_nodes", "approve")["unified_job_template"])
    assert approval["timeout"] == 86400
    assert state.named("workflow_job_template_nodes", "canary")["limit"] == "vllm_canary"


def test_no_secret_is_printed(awx):
    _state, _url, result = awx
    assert [secret for secret in TOLD if secret in result.stdout + result.stderr] == []


def test_a_second_run_changes_nothing(awx):
    state, url, first = awx
    assert changed(first) > 0
    state.requests.clear()
    result = configure(url)
    assert (result.returncode, changed(result)) == (0, 0), result.stdout[-6000:]
    written = [path for command, path in state.requests if command != "GET" and not path.startswith("/api/v2/tokens/")]
    # The modules send fields that the API tells in another form; nothing is made or linked again.
    assert [path for path in written if path.count("/") < 5] == []


def test_what_was_changed_in_awx_is_set_again(awx):
    state, url, _result = awx
    state.named("job_templates", "vLLM: smoke test")["job_slice_count"] = 4
    only = json.dumps({"controller_templates": [template()], **nothing()})
    result = configure(url, "-e", only)
    assert (result.returncode, changed(result)) == (0, 1), result.stdout[-6000:]
    assert state.named("job_templates", "vLLM: smoke test")["job_slice_count"] == 1


def test_a_wrong_password_is_refused(awx):
    _state, url, _result = awx
    result = configure(url, "-e", json.dumps({"controller_templates": [template()], **nothing()}), password="wrong")
    assert result.returncode != 0
    assert "401" in result.stdout


def nothing(**kept: Any) -> dict[str, Any]:
    """Variables with which configure.yml writes nothing but what is kept."""
    kinds = [name for name in CONFIGURATION if name.startswith("controller_") and name != "controller_templates"]
    return {name: kept.get(name, []) for name in kinds}


def template(**changes: Any) -> dict[str, Any]:
    """The job template of the smoke test, changed."""
    concrete = {key: value for key, value in TEMPLATES["vLLM: smoke test"].items() if key != "organization"}
    return {**concrete, "organization": "Default", **changes}


def survey(**question: Any) -> dict[str, Any]:
    asked = {"question_name": "Which?", "variable": "vllm_why", "required": True, **question}
    return {"survey_enabled": True, "survey_spec": {"name": "", "description": "", "spec": [asked]}}


def workflow(*nodes: dict[str, Any]) -> dict[str, Any]:
    (known,) = CONFIGURATION["controller_workflows"]
    made = {**known, "name": "another", "organization": "Default", "simplified_workflow_nodes": list(nodes)}
    return {"controller_workflows": [made], "controller_templates": []}


REFUSALS = {
    "an injector of a field that there is not": (
        {
            "controller_credential_types": [
                {
                    **CONFIGURATION["controller_credential_types"][0],
                    "name": "another",
                    "injectors": {"extra_vars": {"vllm_api_key": {"__ansible_unsafe": "{{ nope }}"}}},
                }
            ],
            "controller_templates": [],
        },
        "vllm_api_key uses an undefined field ('nope' is undefined)",
    ),
    "a default that is no choice": (
        {"controller_templates": [template(**survey(type="multiplechoice", choices=["a", "b"], default="c"))]},
        "Default choice must be answered from the choices listed.",
    ),
    "choices that are no texts": (
        {"controller_templates": [template(**survey(type="multiplechoice", choices=[1, 2], default=""))]},
        "expected to be strings",
    ),
    "a playbook that there is not": (
        {"controller_templates": [template(playbook="nope.yml")]},
        "Playbook not found for project.",
    ),
    "two credentials of a type": (
        {
            "controller_credentials": [
                {**CONFIGURATION["controller_credentials"][1], "organization": "Default", "name": "second key"}
            ],
            "controller_templates": [template(credentials=["Key of the vLLM endpoints", "second key"])],
        },
        "Cannot assign multiple vLLM API key credentials.",
    ),
    "a limit of a template that does not ask for one": (
        {
            **workflow({"identifier": "one", "unified_job_template": "vLLM: no limit", "limit": "vllm_canary"}),
            "controller_templates": [template(name="vLLM: no limit", ask_limit_on_launch=False)],
        },
        "Field is not configured to prompt on launch.",
    ),
    "a workflow that runs in a circle": (
        workflow(
            {"identifier": "one", "unified_job_template": "vLLM: plan", "success_nodes": ["two"]},
            {"identifier": "two", "unified_job_template": "vLLM: smoke test", "failure_nodes": ["one"]},
        ),
        "Cycle detected.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_awx_refuses_is_told_in_its_words(awx, case, tmp_path: Path):
    _state, url, _result = awx
    variables, words = REFUSALS[case]
    file = tmp_path / "variables.json"
    file.write_text(json.dumps({**nothing(**variables), **variables}), encoding="utf-8")
    result = configure(url, "-e", f"@{file}")
    assert result.returncode != 0, result.stdout
    assert words in " ".join(result.stdout.split()).replace("''", "'"), result.stdout[-3000:]


def test_every_value_of_the_data_reaches_its_module():
    """A key that configure.yml does not hand over would be data that does nothing."""
    (play,) = load(EXTENSION / "configure.yml")
    for task in play["tasks"]:
        (module,) = (name for name in task if name.startswith("awx.awx."))
        variable = re.findall(r"controller_\w+", task["loop"])[0]
        entries = [each for each in CONFIGURATION[variable] if "simplified_workflow_nodes" not in str(task["loop"])]
        known = set(task[module]) | {"simplified_workflow_nodes"}
        assert {key for each in entries for key in each} <= known, module
    (workflow,) = CONFIGURATION["controller_workflows"]
    nodes = [task["awx.awx.workflow_job_template_node"] for task in play["tasks"][-2:]]
    assert {key for node in workflow["simplified_workflow_nodes"] for key in node} <= {*nodes[0], *nodes[1]}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each job template on two simulated hosts, as AWX would run it, in the order of a fleet's life."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from awx_data import TEMPLATES, options
from awx_job import SECRETS, Awx, Job

OLD, NEW = "0.30.0", "0.32.0"
KEY = "vllm_approved_digest"
REGISTRY = """
import base64, http.server
class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = "Basic " + base64.b64encode(b"robot:password-that-nobody-may-see").decode()
        self.send_response(200 if self.headers.get("Authorization") == known else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 5000), Registry).serve_forever()
"""


@pytest.fixture(scope="module", name="awx")
def make_awx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Awx]:
    awx = Awx(tmp_path_factory.mktemp("awx"))
    awx.prepare()
    try:
        awx.lab("lab_up.yml")
        yield awx
    finally:
        awx.lab("lab_down.yml")


JOBS: dict[str, Job] = {}
"""The last job of each template."""


def launched(awx: Awx, name: str, *answers: dict[str, Any], **given: Any) -> Job:
    JOBS[name] = awx.launch(f"vLLM: {name}", *answers, **given)
    return JOBS[name]


def on(host: str, *command: str) -> str:
    result = subprocess.run(
        ["docker", "exec", f"gpufleet-awx-{host}", *command], capture_output=True, text=True, check=False
    )
    return result.stdout


def serving(host: str) -> dict[str, Any]:
    """The release of the instance that is in use on a host."""
    return json.loads(on(host, "cat", "/var/lib/vllm/chat/releases/current/release.json") or "{}")


def image(host: str) -> str:
    return json.loads(on(host, "cat", "/etc/vllm/chat/plan.json") or '{"image": ""}')["image"]


def test_plan(awx):
    job = launched(awx, "plan", workflow=7)
    assert job.status == "successful", job.output[-3000:]
    assert "FITS: chat on vLLM" in job.output
    assert job.changed == {}


def test_deploy_on_the_canaries_and_then_on_the_fleet(awx):
    plan = JOBS["plan"].artifacts
    job = launched(awx, "deploy", workflow=7, limit="vllm_canary", **plan)
    assert job.status == "successful", job.output[-3000:]
    assert (image("gpu1"), image("gpu2")) == (f"gpufleet-lab-replay:v{OLD}", "")
    job = launched(awx, "deploy", workflow=7, **plan)
    assert job.status == "successful", job.output[-3000:]
    assert list(job.changed) == ["gpu2"]
    assert image("gpu2") == f"gpufleet-lab-replay:v{OLD}"
    assert {serving(host)["why"] for host in ("gpu1", "gpu2")} == {"AWX workflow job 7"}


def test_smoke_test(awx):
    job = launched(awx, "smoke test")
    assert (job.status, job.changed) == ("successful", {}), job.output[-3000:]


def test_diagnose(awx):
    job = launched(awx, "diagnose", {"vllm_diagnose_interval": "1"})
    assert job.status == "successful", job.output[-3000:]
    assert sum(job.changed.values()) == 1  # the support bundle, beside the playbook


@pytest.mark.skipif(KEY not in options("vllm"), reason=f"roles/vllm does not take {KEY} yet")
def test_what_was_not_approved_is_not_deployed(awx):
    plan = JOBS["plan"].artifacts
    assert sorted(plan["vllm_plan_digest"]["hosts"]) == ["gpu1", "gpu2"]
    job = launched(awx, "deploy", workflow=8, limit="vllm_canary", fleet_release=NEW, **plan)
    assert (job.status, job.changed) == ("failed", {})
    assert KEY in job.output
    assert image("gpu1") == f"gpufleet-lab-replay:v{OLD}"


def test_undo_goes_back_on_what_the_same_workflow_deployed(awx):
    job = launched(awx, "deploy", workflow=9, limit="vllm_canary", fleet_release=NEW)
    assert job.status == "successful", job.output[-3000:]
    assert image("gpu1") == f"gpufleet-lab-replay:v{NEW}"
    before = serving("gpu2")
    job = launched(awx, "undo rollout", workflow=9)
    assert job.status == "successful", job.output[-3000:]
    assert image("gpu1") == f"gpufleet-lab-replay:v{OLD}"
    assert serving("gpu2") == before
    again = launched(awx, "undo rollout", workflow=9)
    assert (again.status, again.changed) == ("successful", {})


def test_roll_back_to_a_release_whose_number_is_a_text(awx):
    answers = {"vllm_roll_back": ["chat"], "vllm_release": "2", "vllm_why": "tried it", "vllm_break_lock": "false"}
    job = launched(awx, "roll back", answers, limit="gpu1")
    assert job.status == "successful", job.output[-3000:]
    assert (serving("gpu1")["number"], image("gpu1")) == (2, f"gpufleet-lab-replay:v{NEW}")


def test_log_in_to_the_registry(awx):
    subprocess.run(["docker", "exec", "-d", "gpufleet-awx-gpu1", "python3", "-c", REGISTRY], check=True)
    job = launched(awx, "log in to the registry", limit="gpu1")
    assert job.status == "successful", job.output[-3000:]
    assert "localhost:5000" in on("gpu1", "bash", "-c", "cat ~/.docker/config.json")


def test_remove(awx):
    job = launched(awx, "remove", {"vllm_remove": ["chat"]})
    assert job.status == "successful", job.output[-3000:]
    assert [image(host) for host in ("gpu1", "gpu2")] == ["", ""]


def test_every_template_was_run_and_no_output_holds_a_secret():
    assert {f"vLLM: {name}" for name in JOBS} == set(TEMPLATES)
    for name, job in JOBS.items():
        assert [secret for secret in SECRETS if secret in job.output] == [], name

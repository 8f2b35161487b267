# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a job template by ansible-runner as AWX does: with its extra variables, the defaults of its survey, what its
credentials inject, the inventory as its source was imported, and the collection as the execution environment has it.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from awx_data import CONFIGURATION, PROJECT, ROOT, TEMPLATES, run, survey_of

FLEET = Path(__file__).parent / "fleet"
INPUTS = {
    "vLLM API key": {"api_key": "key-that-nobody-may-see-in-an-output"},
    "Hugging Face token": {"token": "hf_token-that-nobody-may-see"},
    "vLLM image registry": {"host": "localhost:5000", "username": "robot", "password": "password-that-nobody-may-see"},
}
SECRETS = [inputs[name] for inputs in INPUTS.values() for name in ("api_key", "token", "password") if name in inputs]


@dataclass(frozen=True)
class Job:
    """What became of a job."""

    status: str
    output: str
    artifacts: dict[str, Any]
    changed: dict[str, int]
    """Changes by host, where there were any."""


def injected(credentials: Sequence[str]) -> dict[str, str]:
    """The extra variables that the credentials of a job template give."""
    types = {kind["name"]: kind for kind in CONFIGURATION["controller_credential_types"]}
    kinds = {each["name"]: types.get(each["credential_type"]) for each in CONFIGURATION["controller_credentials"]}
    found = {}
    for kind in filter(None, map(kinds.get, credentials)):
        for variable, template in kind["injectors"]["extra_vars"].items():
            found[variable] = jinja2.Template(template).render(INPUTS[kind["name"]])
    return found


@dataclass
class Awx:
    """An organisation's AWX, as far as a job sees it. folder: for the project, the collection and the jobs."""

    folder: Path
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))

    @property
    def inventory(self) -> Path:
        return self.folder / "project/inventory"

    def prepare(self) -> None:
        """Checks the project out, with hosts of this machine, and installs the collection."""
        shutil.copytree(PROJECT, self.folder / "project")
        shutil.rmtree(self.inventory / "group_vars")
        shutil.copytree(FLEET, self.inventory, dirs_exist_ok=True)
        (self.folder / "ansible.cfg").touch()
        self.do("tools/ci/export.sh", f"{self.folder}/source", cwd=ROOT)
        self.do("ansible-galaxy", "collection", "build", "source")
        (archive,) = self.folder.glob("gpufleet-vllm-*.tar.gz")
        self.do("ansible-galaxy", "collection", "install", "--offline", str(archive), "-p", "collections")

    def do(self, *command: str, cwd: Path | None = None) -> str:
        result = run(*command, cwd=cwd or self.folder, **self.settings())
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
        return result.stdout

    def settings(self) -> dict[str, str]:
        """Nothing of the clone: the execution environment has the collection, and the project no ansible.cfg."""
        return {
            "ANSIBLE_CONFIG": f"{self.folder}/ansible.cfg",
            "ANSIBLE_COLLECTIONS_PATH": f"{self.folder}/collections",
        }

    def lab(self, playbook: str) -> None:
        """Brings the simulated hosts up or takes them down."""
        inventory = ("--inventory", str(self.inventory))
        result = run("ansible-playbook", *inventory, f"playbooks/{playbook}", ANSIBLE_CONFIG=f"{ROOT}/ansible.cfg")
        if result.returncode != 0:
            raise RuntimeError(result.stdout[-3000:] + result.stderr[-3000:])

    def imported(self) -> str:
        """The script with the inventory that AWX gives to a job, from what it imported of the source."""
        listed = self.do("ansible-inventory", "--inventory", str(self.inventory), "--list", "--export")
        return f"#!{sys.executable}\nprint({json.dumps(listed)})\n"

    def launch(
        self, name: str, answers: Mapping[str, Any] | None = None, limit: str = "", workflow: int = 0, **variables: Any
    ) -> Job:
        """Runs a job template. answers: to its survey; variables: as a workflow hands on what nodes left."""
        template = TEMPLATES[name]
        number = next(self.numbers)
        private = self.folder / f"job{number}"
        (private / "env").mkdir(parents=True)
        (private / "inventory").mkdir()
        shutil.copytree(self.folder / "project", private / "project")
        script = private / "inventory/hosts"
        script.write_text(self.imported(), encoding="utf-8")
        script.chmod(0o755)
        about = {"awx_job_id": number, **({"awx_workflow_job_id": workflow} if workflow else {})}
        defaults = {each["variable"]: each["default"] for each in survey_of(template)}
        everything = {**template.get("extra_vars", {}), **defaults, **variables, **(answers or {}), **about}
        (private / "env/extravars").write_text(json.dumps(everything), encoding="utf-8")
        (private / "credentials.json").write_text(json.dumps(injected(template["credentials"])), encoding="utf-8")
        return self.job(private, template, ["--limit", limit] if limit else [])

    def job(self, private: Path, template: Mapping[str, Any], options: Sequence[str]) -> Job:
        words = f"-e @{private}/credentials.json {'--diff' if template.get('diff_mode') else ''}"
        command = ["ansible-runner", "run", str(private), "-p", template["playbook"], "--ident", "job", "-vvv", "-q"]
        run(*command, "--cmdline", words, *options, **self.settings())
        artifacts = private / "artifacts/job"
        events = [json.loads(path.read_text(encoding="utf-8")) for path in artifacts.glob("job_events/*.json")]
        (end,) = (event["event_data"] for event in events if event["event"] == "playbook_on_stats")
        return Job(
            status=(artifacts / "status").read_text(encoding="utf-8"),
            output=(artifacts / "stdout").read_text(encoding="utf-8") + json.dumps(events),
            artifacts=end.get("artifact_data", {}),
            changed=end.get("changed", {}),
        )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An API that behaves as far as configure.yml can see as that of AWX 24.6 does, with what it refuses.

Objects are kept in memory. What is checked, and how a refusal reads, is what the real one did or what its source says.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from jinja2 import StrictUndefined, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

ENCRYPTED = "$encrypted$"
USER, PASSWORD, TOKEN = "admin", "password of the fake", "token-of-the-fake"
UNIQUE = {
    "organizations": ("name",),
    "credential_types": ("name",),
    "execution_environments": ("name",),
    "workflow_approval_templates": (),
    "labels": ("name", "organization"),
    "credentials": ("name", "organization", "credential_type"),
    "projects": ("name", "organization"),
    "inventories": ("name", "organization"),
    "inventory_sources": ("name", "inventory"),
    "job_templates": ("name", "organization"),
    "workflow_job_templates": ("name", "organization"),
    "workflow_job_template_nodes": ("identifier", "workflow_job_template"),
}
"""Every kind of object, with what makes one unique."""

NODE_LINKS = ("success_nodes", "failure_nodes", "always_nodes")
RELATIONS = {
    "job_templates": ("credentials", "labels"),
    "workflow_job_templates": ("labels",),
    "workflow_job_template_nodes": (*NODE_LINKS, "credentials", "labels"),
}
UNIFIED = ("job_templates", "projects", "inventory_sources", "workflow_job_templates", "workflow_approval_templates")
PROMPTS = ("limit", "job_type", "verbosity", "forks", "diff_mode")
SURVEY_TYPES = {
    "text": str,
    "textarea": str,
    "password": str,
    "multiplechoice": str,
    "multiselect": str,
    "integer": int,
    "float": float,
}
PLAYBOOK_LINE = re.compile(r"^\s*?-?\s*?(?:hosts|include|import_playbook):\s*?.*?$", re.M)
"""By such a line AWX takes a file of a project for a playbook (awx/main/utils/ansible.py)."""


class Refusal(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(body)
        self.status, self.body = status, body


@dataclass
class Awx:
    """The state. project: folder that every project's checkout is taken from."""

    project: Path
    objects: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in UNIQUE})
    links: dict[tuple[str, int, str], list[int]] = field(default_factory=dict)
    surveys: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    last: int = 0

    def __post_init__(self) -> None:
        self.create("organizations", {"name": "Default"})
        fields = [{"id": "username"}, {"id": "ssh_key_data", "secret": True}, {"id": "become_password", "secret": True}]
        self.create("credential_types", {"name": "Machine", "kind": "ssh", "inputs": {"fields": fields}})

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """The only object of that name."""
        (found,) = (each for each in self.objects[kind].values() if each.get("name", each.get("identifier")) == name)
        return found

    def linked(self, kind: str, name: str, relation: str) -> list[str]:
        """The names of what is associated with an object."""
        ids = self.links.get((kind, self.named(kind, name)["id"], relation), [])
        return sorted(self.lookup(each).get("name") or self.lookup(each)["identifier"] for each in ids)

    def lookup(self, number: int) -> dict[str, Any]:
        (found,) = (objects[number] for objects in self.objects.values() if number in objects)
        return found

    def create(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        self.check(kind, data, None)
        same = [each for each in self.objects[kind].values() if all(each.get(k) == data.get(k) for k in UNIQUE[kind])]
        if same and UNIQUE[kind]:
            raise Refusal(400, {"__all__": [f"{kind} with this {' and '.join(UNIQUE[kind])} already exists."]})
        self.last += 1
        url = f"/api/v2/{kind}/{self.last}/"
        related = {"survey_spec": f"{url}survey_spec/"} if kind in ("job_templates", "workflow_job_templates") else {}
        made = {**data, "id": self.last, "url": url, "type": kind[:-1], "related": related, "summary_fields": {}}
        if kind == "projects":
            made.update(scm_revision="", summary_fields={"current_update": {"id": self.last}})
        self.objects[kind][self.last] = made
        return made

    def update(self, kind: str, item: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        self.check(kind, {**item, **data}, item)
        item.update(data)
        return item

    def check(self, kind: str, data: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Refuses what AWX refuses."""
        checks: dict[str, Callable[..., None]] = {
            "credential_types": self.check_credential_type,
            "credentials": self.check_credential,
            "job_templates": self.check_job_template,
            "inventories": self.check_inventory,
            "workflow_job_template_nodes": self.check_node,
        }
        checks.get(kind, lambda *_given: None)(data, before)

    def check_credential_type(self, data: dict[str, Any], before: dict[str, Any] | None) -> None:
        in_use = before and any(
            each["credential_type"] == before["id"] for each in self.objects["credentials"].values()
        )
        if in_use and data["inputs"] != before["inputs"]:
            raise Refusal(403, {"detail": "Modifications to inputs are not allowed for credential types in use."})
        names = {each["id"]: "EXAMPLE" for each in data["inputs"]["fields"]}
        for injectors in data.get("injectors", {}).values():
            for key, template in injectors.items():
                try:
                    ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(template).render(names)
                except UndefinedError as error:
                    raise Refusal(400, {"injectors": [f"{key} uses an undefined field ({error})"]}) from error

    def check_credential(self, data: dict[str, Any], _before: dict[str, Any] | None) -> None:
        known = {each["id"] for each in self.objects["credential_types"][data["credential_type"]]["inputs"]["fields"]}
        unknown = sorted(set(data.get("inputs", {})) - known)
        if unknown:
            raise Refusal(400, {"inputs": [f"Additional properties are not allowed ({unknown[0]!r} was unexpected)"]})

    def check_inventory(self, data: dict[str, Any], _before: dict[str, Any] | None) -> None:
        if data.get("kind", "") is None:
            raise Refusal(400, {"kind": ["This field may not be null."]})

    def check_job_template(self, data: dict[str, Any], _before: dict[str, Any] | None) -> None:
        if data["playbook"] not in self.playbooks():
            raise Refusal(400, {"playbook": ["Playbook not found for project."]})

    def check_node(self, data: dict[str, Any], _before: dict[str, Any] | None) -> None:
        template = self.objects["job_templates"].get(data.get("unified_job_template", 0))
        for prompt in PROMPTS if template else ():
            if data.get(prompt) and not template.get(f"ask_{prompt}_on_launch"):
                raise Refusal(400, {prompt: ["Field is not configured to prompt on launch."]})

    def playbooks(self) -> list[str]:
        files = sorted(path for path in self.project.rglob("*.yml") if "group_vars" not in path.parts)
        found = [path for path in files if PLAYBOOK_LINE.search(path.read_text(encoding="utf-8"))]
        return [str(path.relative_to(self.project)) for path in found]

    def associate(self, kind: str, number: int, relation: str, data: dict[str, Any]) -> None:
        linked = self.links.setdefault((kind, number, relation), [])
        if data.get("disassociate"):
            linked.remove(data["id"])
            return
        if relation in NODE_LINKS and number in {data["id"], *self.reachable(data["id"])}:
            raise Refusal(400, {"Error": "Cycle detected."})
        if relation == "credentials":
            self.check_attached(linked, data["id"])
        linked.append(data["id"])

    def reachable(self, node: int) -> set[int]:
        following = [to for (_k, at, r), ids in self.links.items() if at == node and r in NODE_LINKS for to in ids]
        return {*following, *(each for to in following for each in self.reachable(to))}

    def check_attached(self, linked: list[int], number: int) -> None:
        types = [self.objects["credentials"][each]["credential_type"] for each in linked]
        mine = self.objects["credentials"][number]["credential_type"]
        if mine in types:
            name = self.objects["credential_types"][mine]["name"]
            raise Refusal(400, {"error": f"Cannot assign multiple {name} credentials."})

    def write_survey(self, number: int, survey: dict[str, Any]) -> None:
        for key, kind, label in (("name", str, "string"), ("description", str, "string"), ("spec", list, "list")):
            if key not in survey:
                raise Refusal(400, {"error": f"Field '{key}' is missing from survey spec."})
            if not isinstance(survey[key], kind):
                raise Refusal(400, {"error": f"Expected {label} for field '{key}'."})
        if not survey["spec"]:
            raise Refusal(400, {"error": "'spec' doesn't contain any items."})
        for index, question in enumerate(survey["spec"]):
            check_question(index, question)
        self.surveys[number] = survey


def check_question(index: int, question: dict[str, Any]) -> None:
    for key in ("type", "question_name", "variable", "required"):
        if key not in question:
            raise Refusal(400, {"error": f"'{key}' missing from survey question {index}"})
        if not isinstance(question[key], bool if key == "required" else str):
            raise Refusal(400, {"error": f"'{key}' in survey question {index} has the wrong type."})
    kind, default = question["type"], question.get("default", "")
    if kind not in SURVEY_TYPES:
        raise Refusal(400, {"error": f"'{kind}' in survey question {index} is not one of the allowed question types."})
    if default != "" and not isinstance(default, SURVEY_TYPES[kind]):
        raise Refusal(400, {"error": f"Default value {default} in survey question {index} expected to be {kind}."})
    if kind in ("multiplechoice", "multiselect"):
        if "choices" not in question:
            raise Refusal(400, {"error": f"Survey question {index} of type {kind} must specify choices."})
        if not all(isinstance(choice, str) for choice in question["choices"]):
            raise Refusal(400, {"error": f"Choices of survey question {index} expected to be strings."})
        if any(each not in question["choices"] for each in default.splitlines()):
            raise Refusal(400, {"error": "Default choice must be answered from the choices listed."})


class Handler(BaseHTTPRequestHandler):
    """Requests to the state in `awx`, which the server's own subclass has."""

    awx: Awx
    lock = threading.Lock()

    def answer(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        data = json.loads(self.rfile.read(length) or b"{}")
        with self.lock:
            self.awx.requests.append((self.command, parts.path))
            try:
                self.authenticate(parts.path)
                status, body = self.route(parts.path, dict(parse_qsl(parts.query)), data)
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
        text = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-API-Product-Name", "AWX")
        self.send_header("X-API-Product-Version", "24.6.1")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the tests read `requests`."""

    def authenticate(self, path: str) -> None:
        given = self.headers.get("Authorization", "")
        basic = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if given != (basic if path.startswith("/api/v2/tokens/") else f"Bearer {TOKEN}"):
            raise Refusal(401, {"detail": "Authentication credentials were not provided."})

    def route(self, path: str, query: dict[str, str], data: dict[str, Any]) -> tuple[int, Any]:
        api, version, kind, *rest = path.strip("/").split("/")
        if (api, version) != ("api", "v2"):
            raise Refusal(404, {"detail": "Not found."})
        if kind == "tokens":
            return (204, None) if rest else (201, {"id": 1, "token": TOKEN})
        if kind == "project_updates":
            return 200, {"id": int(rest[0]), "status": "successful", "finished": "2026-01-01T00:00:00Z"}
        if kind == "unified_job_templates":
            return 200, self.page([each for name in UNIFIED for each in self.awx.objects[name].values()], query)
        if kind not in self.awx.objects:
            raise Refusal(404, {"detail": "Not found."})
        if not rest:
            return self.collection(kind, query, data)
        item = self.awx.objects[kind].get(int(rest[0]))
        if item is None:
            raise Refusal(404, {"detail": "Not found."})
        return self.related(kind, item, rest[1], data) if rest[1:] else self.item(kind, item, data)

    def collection(self, kind: str, query: dict[str, str], data: dict[str, Any]) -> tuple[int, Any]:
        if self.command == "POST":
            return 201, self.shown(kind, self.awx.create(kind, data))
        return 200, self.page([self.shown(kind, each) for each in self.awx.objects[kind].values()], query)

    def item(self, kind: str, item: dict[str, Any], data: dict[str, Any]) -> tuple[int, Any]:
        if self.command == "PATCH":
            self.awx.update(kind, item, data)
        return 200, self.shown(kind, item)

    def related(self, kind: str, item: dict[str, Any], relation: str, data: dict[str, Any]) -> tuple[int, Any]:
        number = item["id"]
        if relation == "survey_spec" and kind in ("job_templates", "workflow_job_templates"):
            if self.command == "POST":
                self.awx.write_survey(number, data)
            if self.command == "DELETE":
                self.awx.surveys.pop(number, None)
            return 200, self.awx.surveys.get(number, {})
        if (kind, relation) == ("workflow_job_template_nodes", "create_approval_template"):
            made = self.awx.create("workflow_approval_templates", data)
            item.update(unified_job_template=made["id"], related={"unified_job_template": made["url"]})
            return 201, made
        if relation not in RELATIONS.get(kind, ()):
            raise Refusal(404, {"detail": "Not found."})
        if self.command == "POST":
            self.awx.associate(kind, number, relation, data)
            return 204, None
        ids = self.awx.links.get((kind, number, relation), [])
        return 200, self.page([self.awx.lookup(each) for each in ids], {})

    def page(self, found: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        either = {key.removeprefix("or__"): value for key, value in query.items() if key.startswith("or__")}
        every = {key: value for key, value in query.items() if not key.startswith("or__")}
        kept = [each for each in found if all(str(each.get(key)) == value for key, value in every.items())]
        if either:
            kept = [each for each in kept if any(str(each.get(key)) == value for key, value in either.items())]
        return {"count": len(kept), "next": None, "previous": None, "results": kept}

    def shown(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        """An object as AWX tells it: without secrets."""
        if kind != "credentials":
            return item
        fields = self.awx.objects["credential_types"][item["credential_type"]]["inputs"]["fields"]
        secret = {each["id"] for each in fields if each.get("secret")}
        return {**item, "inputs": {k: ENCRYPTED if k in secret else v for k, v in item.get("inputs", {}).items()}}


@contextmanager
def served(awx: Awx) -> Any:
    """The address of the API while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("AwxHandler", (Handler,), {"awx": awx}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""The two hosts of the scenario and the engine over both: break it, deploy it, look at it, put it back."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
INVENTORY = yaml.safe_load((SCENARIO / "inventory/hosts.yml").read_text())
KEY = (Path.home() / ".cache/gpufleet-lab/keys/api_key").read_text().strip()

#: The releases of the replay engine: the one that serves before each test, and the one that tests deploy.
OLD, NEW = INVENTORY["vllm"]["vars"]["lab_replay_releases"]

#: Fast starts of a model that fills a part of each card. Engines over hosts that lose each other notice it after ten
#: minutes, as vLLM's do: until then nobody but the watchers does. Every test changes what it needs.
REPLAY = {"startup_seconds": 1.5, "model": {"weights_gib": 4}, "heartbeat_timeout_seconds": 600}

#: A restart after a second, for tests that wait for one: what is tested is that it comes, not how long it takes.
HASTE = "[Service]\nRestartSec=1\n"

#: As many starts as a test likes.
PATIENCE = "[Unit]\nStartLimitIntervalSec=0\n"

#: A watcher that takes a silent host for lost after 8 s in place of 30.
NERVOUS = """[Service]
ExecStart=
ExecStart=/usr/bin/env python3 -c 'import sys; sys.path.insert(0, "/etc/vllm/demo"); import members; \
  members.LOST_SECONDS = 8.0; sys.argv = ["/etc/vllm/demo/members.py", "demo"]; raise SystemExit(members.main())'
"""


class Member:
    """One of the hosts. What it does is seen from its own side."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = f"{INVENTORY['all']['vars']['lab_name']}-{name}"
        variables = INVENTORY["vllm"]["hosts"][name]
        self.endpoint = "http://" + variables["lab_published_ports"][0].rpartition(":")[0]

    def run(self, script: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a script as root."""
        return subprocess.run(
            ["docker", "exec", "--interactive", self.container, "bash", "-c", script],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def read(self, script: str, text: str = "") -> str:
        """The output of a script that must succeed."""
        result = self.run(script, text)
        assert result.returncode == 0, f"{self.name}: {script}\n{result.stdout}{result.stderr}"
        return result.stdout.strip()

    @property
    def invocation(self) -> str:
        """Changes with each start of the engine."""
        return self.read("systemctl show vllm-demo --property InvocationID --value")

    @property
    def state(self) -> str:
        return self.read("systemctl show vllm-demo --property SubState --value")

    @property
    def plan(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.read("cat /etc/vllm/demo/plan.json"))
        return told

    @property
    def address(self) -> str:
        """The one on the network between the members."""
        members = {member["host"]: member["address"] for member in self.plan["launch"]["members"]}
        return str(members[self.name])

    def failures(self) -> list[str]:
        """The folders of the archived failures, the first one first."""
        return self.read("ls -d /var/lib/vllm/demo/failures/[0-9]* 2>/dev/null | sort || true").split()

    def replay(self, **settings: Any) -> None:
        """Changes what the replay engine does, of a running engine too."""
        path = "/etc/gpufleet-driver/replay.json"
        self.read(f"cat > {path}.new && mv {path}.new {path}", json.dumps({**REPLAY, **settings}))

    def drop_in(self, name: str, text: str, unit: str = "vllm-demo") -> None:
        """Adds to a unit until heal(), or the next boot."""
        folder = f"/run/systemd/system/{unit}.service.d"
        self.read(f"mkdir -p {folder} && cat > {folder}/{name}.conf && systemctl daemon-reload", text)

    def heal(self) -> None:
        """Takes the faults away."""
        self.read(
            "iptables --flush INPUT; iptables --flush OUTPUT; rm -f /run/systemd/system/vllm-*.service.d/*.conf; "
            # Starts of earlier tests count as well.
            "systemctl reset-failed vllm-demo || true"
        )
        self.drop_in("haste", HASTE)
        self.replay()

    def start(self) -> None:
        """Starts what the test before left down."""
        self.read("systemctl start --no-block vllm-members@demo vllm-demo")

    def firewall(self, *rules: str) -> None:
        """Adds rules of iptables, until heal()."""
        self.read(" && ".join(f"iptables --insert {rule}" for rule in rules))


class Pair:
    """The engine over both hosts."""

    def __init__(self) -> None:
        self.first, self.second = self.members = [Member(name) for name in INVENTORY["vllm"]["hosts"]]

    def request(self, route: str, body: Any = None) -> tuple[int, str]:
        """Status and text of an answer of rank 0; (0, reason) where nobody answers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        target = urllib.request.Request(self.first.endpoint + route, data, headers)
        try:
            with urllib.request.urlopen(target, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def answer(self, **asked: Any) -> dict[str, Any] | None:
        """What it answers at temperature 0: the choice of the API, or None."""
        message = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
        status, text = self.request("/v1/chat/completions", {**message, "temperature": 0, **asked})
        return dict(json.loads(text)["choices"][0]) if status == 200 else None

    def serves(self) -> str | None:
        """The version of vLLM that answers a real request, or None."""
        answer = self.answer()
        if not answer or not answer["message"]["content"]:
            return None
        version: str = json.loads(self.request("/version")[1])["version"]
        return version

    @property
    def invocations(self) -> list[str]:
        return [member.invocation for member in self.members]

    def replay(self, **settings: Any) -> None:
        for member in self.members:
            member.replay(**settings)

    def wait_until(self, what: Callable[[], Any], seconds: float = 90.0) -> Any:
        """What the function returns as soon as that is true."""
        deadline = time.monotonic() + seconds
        while not (result := what()):
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s\n{self.journals()}"
            time.sleep(0.5)
        return result

    def journals(self) -> str:
        command = "journalctl --unit vllm-demo --unit vllm-members@demo --lines 30 --no-pager --output cat"
        return "\n".join(f"== {member.name}\n{member.run(command).stdout}" for member in self.members)

    def heal(self) -> None:
        for member in self.members:
            member.heal()

    def serves_again(self, release: str, seconds: float = 40.0) -> bool:
        """Whether it serves the release, without a deployment."""
        if self.serves() == release:
            return True
        if any(release not in member.read("cat /etc/vllm/demo/plan.json || true") for member in self.members):
            return False
        for member in self.members:
            member.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.serves() == release:
                return True
            time.sleep(0.5)
        return False

    def cut(self) -> None:
        """Cuts the network between the members, until heal()."""
        peer = self.first.address
        self.second.firewall(f"INPUT --source {peer} --jump DROP", f"OUTPUT --destination {peer} --jump DROP")


def playbook(*arguments: str, name: str = "deploy_vllm", **variables: Any) -> Result:
    """Runs a playbook on both hosts, as a user does."""
    return Result(
        subprocess.run(
            [
                *("ansible-playbook", "--inventory", f"{SCENARIO}/inventory", *arguments),
                *("--extra-vars", json.dumps(variables), f"playbooks/{name}.yml"),
            ],
            cwd=REPOSITORY,
            env={**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    )


class Result:
    """How a playbook ended, and what it said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.output = done.returncode, done.stdout + done.stderr

    def succeeded(self) -> Result:
        assert self.code == 0, self.output[-6000:]
        return self

    def failed_with(self, *texts: str) -> Result:
        """It failed, said these things (whatever the line breaks) and what to do next."""
        assert self.code != 0, self.output[-6000:]
        words = " ".join(self.output.split()).lower()
        for text in (*texts, "Next"):
            assert text.lower() in words, f"not said: {text}\n{self.output[-6000:]}"
        assert KEY not in self.output
        return self

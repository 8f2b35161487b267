"""The hosts of the scenario: break them, deploy on them, look at them, put them back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
INVENTORY = yaml.safe_load((SCENARIO / "inventory/hosts.yml").read_text())
KEY = (Path.home() / ".cache/gpufleet-lab/keys/api_key").read_text().strip()

#: The releases of the replay engine: the one that serves before each test, and the one that tests deploy.
OLD, NEW = INVENTORY["vllm"]["vars"]["lab_replay_releases"]

#: Fast starts of a model that fills a part of each card. Every test changes what it needs.
REPLAY = {"startup_seconds": 1.5, "model": {"weights_gib": 4}}


class Host:
    """One simulated host. What it does is seen from its own side, so that a lost SSH connection hides nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = f"{INVENTORY['all']['vars']['lab_name']}-{name}"
        variables = INVENTORY["vllm"]["hosts"][name]
        self.profile = variables["lab_profile"]
        self.endpoint = "http://" + variables["lab_published_ports"][0].rpartition(":")[0]

    # -- its own side -------------------------------------------------------------------------------------------------
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

    def unit(self, *names: str) -> list[str]:
        """Properties of the engine's unit, as systemd tells them."""
        lines = self.read(f"systemctl show vllm-demo --property {','.join(names)}").splitlines()
        told = dict(line.split("=", 1) for line in lines)
        return [told[name] for name in names]

    @property
    def invocation(self) -> str:
        """Changes with each start of the engine."""
        return self.unit("InvocationID")[0]

    def release(self) -> dict[str, Any]:
        """release.json of the numbered release whose files are in use."""
        told: dict[str, Any] = json.loads(self.read("cat /var/lib/vllm/demo/releases/current/release.json"))
        return told

    def failures(self) -> list[str]:
        """The folders of the archived failures, the first one first."""
        return self.read("ls -d /var/lib/vllm/demo/failures/[0-9]* 2>/dev/null | sort || true").split()

    # -- as a client sees it ------------------------------------------------------------------------------------------
    def request(self, route: str, body: Any = None, key: str = KEY) -> tuple[int, str]:
        """Status and text of an answer; (0, reason) where nobody answers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.endpoint + route, data, headers), timeout=10) as it:
                return it.status, it.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def serves(self, key: str = KEY) -> str | None:
        """The version of vLLM that answers a real request, or None."""
        message = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
        status, text = self.request("/v1/chat/completions", message, key)
        if status != 200 or not json.loads(text)["choices"][0]["message"]["content"]:
            return None
        version: str = json.loads(self.request("/version")[1])["version"]
        return version

    # -- faults -------------------------------------------------------------------------------------------------------
    def replay(self, **settings: Any) -> None:
        """Changes what the replay engine does, of a running engine too."""
        self._write("/etc/gpufleet-driver/replay.json", json.dumps({**REPLAY, **settings}))

    @contextlib.contextmanager
    def small_disk(self, path: str, options: str) -> Iterator[None]:
        """Something with no room under a path, as long as the with lasts."""
        self.read(f"mkdir -p {path} && mount -t tmpfs -o {options} tmpfs {path}")
        try:
            yield
        finally:
            self.read(f"umount --lazy {path}")

    @contextlib.contextmanager
    def without_ssh(self) -> Iterator[None]:
        """Every SSH connection breaks, and no new one is taken."""
        try:
            self.read("systemctl stop ssh; timeout 10 bash -c 'while pkill -KILL -x sshd; do sleep 0.1; done'")
            yield
        finally:
            self.read("systemctl start ssh")

    def _write(self, path: str, text: str) -> None:
        self.read(f"cat > {path}.new && mv {path}.new {path}", text)

    # -- waiting, and putting back ------------------------------------------------------------------------------------
    def wait_until(self, what: Callable[[], Any], seconds: float = 60.0) -> Any:
        """What the function returns as soon as that is true."""
        deadline = time.monotonic() + seconds
        while not (result := what()):
            assert time.monotonic() < deadline, f"{self.name}: waited {seconds:.0f} s\n{self.journal()}"
            time.sleep(0.3)
        return result

    def journal(self) -> str:
        return self.run("systemctl status vllm-demo --lines 40 --no-pager").stdout

    def heal(self) -> bool:
        """Takes the faults away. Returns whether it serves what it is to serve before each test."""
        self.replay()
        self.read(f"cp /usr/share/gpufleet-driver/profiles/{self.profile}.json /etc/gpufleet-driver/profile")
        plan = json.loads(self.read("cat /etc/vllm/demo/plan.json || echo {}"))
        asked = {"image": f"gpufleet-lab-replay:v{OLD}", "checkpoint": "/data/models/tiny-chat", "port": 8000}
        return {name: plan.get(name) for name in asked} == asked and self.serves() == OLD


class Deployment:
    """One run of a playbook on the scenario's hosts, as a user starts it."""

    def __init__(self, log: Path, hosts: list[Host], playbook: str, variables: dict[str, Any]) -> None:
        self._log = log
        limit = ",".join(host.name for host in hosts)
        command = ["ansible-playbook", "--inventory", f"{SCENARIO}/inventory", "--limit", limit]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--extra-vars", json.dumps(variables), f"playbooks/{playbook}.yml"],
                cwd=REPOSITORY,
                env={**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg", "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def end(self) -> str:
        """As much of the output as a person reads."""
        return self.output[-5000:]

    def finish(self) -> Deployment:
        try:
            self.process.wait(300)
        finally:
            self.kill()
        return self

    def kill(self) -> None:
        """Ends it and all of its workers at once, as a crash of the controller does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def succeeded(self) -> Deployment:
        assert self.process.returncode == 0, self.end
        return self

    def failed_with(self, *texts: str) -> Deployment:
        """It failed, said these things (whatever the line breaks) and what to do next."""
        assert self.process.returncode not in (0, None), self.end
        words = " ".join(self.output.split())
        for text in (*texts, "Next"):
            assert text.lower() in words.lower(), f"not said: {text}\n{self.end}"
        assert KEY not in self.output
        return self

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A replay engine as a process on the loopback interface."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

REPLAY = Path(__file__).resolve().parents[3] / "roles" / "lab" / "files" / "replay"
GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "compute_capability": "9.0"}
SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def make_checkpoint(path: Path, **config: Any) -> Path:
    """A checkpoint of the size of nothing. Its weights are what the setting ``model`` says."""
    path.mkdir(exist_ok=True)
    shape = {"num_attention_heads": 4, "hidden_size": 128, "max_position_embeddings": 2048}
    whole = {"architectures": ["Qwen3ForCausalLM"], **shape, **config}
    (path / "config.json").write_text(json.dumps(whole))
    return path


class Engine:
    """One engine. It is killed at the end of the ``with`` at the latest."""

    def __init__(
        self,
        checkpoint: Path,
        *arguments: str,
        key: str | None = None,
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.port = free_port()
        self.log_file = checkpoint.parent / f"engine-{self.port}.log"
        self.settings_file = checkpoint.parent / f"engine-{self.port}.json"
        self._write({"gpus": [GPU] * 2, "startup_seconds": 0.1, "model": {"weights_gib": 1}, **settings})
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("REPLAY_", "VLLM_"))},
            "PYTHONPATH": str(REPLAY),
            "REPLAY_FILE": str(self.settings_file),
            "REPLAY_RELEASE": "0.27.1",
            **({"VLLM_API_KEY": key} if key else {}),
            **(environment or {}),
        }
        command = [sys.executable, "-m", "gpufleet_replay", "serve", str(checkpoint), "--host=127.0.0.1"]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, f"--port={self.port}", "--served-model-name=demo", *arguments],
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def change(self, **settings: Any) -> None:
        """Changes settings while the engine runs."""
        self._write({**json.loads(self.settings_file.read_text()), **settings})

    def wait_for_line(self, text: str) -> None:
        deadline = time.monotonic() + SECONDS
        while text not in self.log:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log}"
            time.sleep(0.02)

    def wait_until_it_serves(self) -> Engine:
        self.wait_for_line("Application startup complete.")
        return self

    def exit_code(self) -> int:
        return self.process.wait(SECONDS)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """The status and the body, parsed if it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        content = body if isinstance(body, (str, type(None))) else json.dumps(body)
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    def _write(self, settings: dict[str, Any]) -> None:
        new = self.settings_file.with_suffix(".new")
        new.write_text(json.dumps(settings))
        new.replace(self.settings_file)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a plan becomes a command line. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ._catalogue import serve_args

# Characters that systemd does not interpret in an unquoted word of ExecStart (systemd.service(5), "COMMAND LINES").
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@")


# vLLM's workers and NCCL pass tensors through /dev/shm, of which Docker gives a container 64 MiB; vLLM 0.32.0 asks for
# 160 MiB at start. It is a limit, not a reservation: what is not used costs nothing.
_SHARED_MEMORY = "16g"
# An engine that could ask the internet for anything would fail where there is none, at the next restart at the latest.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def docker_run(plan: Mapping[str, Any], environment_file: str, cache_directory: str) -> list[str]:
    """Returns the argv of `docker run` for the engine of a plan on one host.

    environment_file: file on the host with the secret variables. cache_directory: folder on the host for what the
    engine compiles. Raises ArgumentProblem for arguments that the release does not take.
    """
    model = f"/models/{PurePosixPath(plan['checkpoint']).name}"
    # The container stays until its end was looked at: archive.sh reads why it ended and removes it.
    command = ["/usr/bin/docker", "run", "--name", f"vllm-{plan['name']}"]
    # The journal of the unit keeps the log; a second copy in Docker's json-file would grow without limit.
    command += ["--log-driver", "none"]
    command += ["--runtime", "nvidia", "--gpus", f'"device={",".join(_devices(plan))}"']
    command += ["--shm-size", _SHARED_MEMORY, "--security-opt", "no-new-privileges"]
    # Of Docker's default capabilities the engine needs one: to read a checkpoint that belongs to another user.
    command += ["--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE"]
    command += ["--publish", f"{plan['address']}:{plan['port']}:{plan['port']}"]
    command += ["--volume", f"{plan['checkpoint']}:{model}:ro"]
    command += ["--volume", f"{cache_directory}:/root/.cache/vllm"]
    command += ["--env-file", environment_file]
    for variable, value in sorted({**plan["environment"], **_OFFLINE}.items()):
        command += ["--env", f"{variable}={value}"]
    return [*command, plan["image"], *_engine_command(plan, model)]


def _devices(plan: Mapping[str, Any]) -> list[str]:
    """The UUIDs of the plan's GPUs on its (only) host: an index may mean another card after a reboot."""
    (devices,) = plan["devices"].values()
    return list(devices)


def _engine_command(plan: Mapping[str, Any], model: str) -> list[str]:
    """What follows the image: the model, how it is served, and the planned arguments as the release takes them."""
    served = [
        {"name": "served_model_name", "value": plan["served_model_name"]},
        {"name": "host", "value": "0.0.0.0"},  # inside the container; where it is published is Docker's matter
        {"name": "port", "value": plan["port"]},
    ]
    complete = {**plan, "arguments": [*served, *plan["arguments"]]}
    return serve_args(complete, model=model, force=plan.get("force_args") or ())


def systemd_command(argv: list[str]) -> str:
    """Returns argv as the value of ExecStart, one option a line: a person can read it and a diff shows one line.

    Source of the quoting: systemd.service(5): words in double quotes, backslash escapes, `%%` and `$$` for the signs.
    """
    lines: list[list[str]] = [[]]
    for word in argv:
        # A line is an option with its value, or what stands by itself (the program with its subcommand, the image).
        option_has_value = lines[-1] and lines[-1][0].startswith("-") and len(lines[-1]) == 2
        if word.startswith("-") or option_has_value:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(map(_quote, line)) for line in lines)


def _quote(word: str) -> str:
    """Returns one word as systemd takes it literally."""
    if word and set(word) <= _PLAIN:
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import _launch
from ..plugin_utils._catalogue import ArgumentProblem, UnknownRelease

DOCUMENTATION = r"""
name: docker_run
short_description: Turn a plan into the command that starts its engine
description:
  - Gives the C(docker run) command of one engine, word by word. The chosen GPUs are named by their UUIDs, the
    checkpoint is mounted read-only, downloads are switched off, and secrets come from a file.
  - The engine's own words are those of P(gpufleet.vllm.serve_args#filter), checked against the release.
author:
  - gpufleet maintainers
positional: _input, environment_file, cache_directory, host, image
options:
  _input:
    description: The plan, as P(gpufleet.vllm.plan#filter) gives it.
    type: dict
    required: true
  environment_file:
    description: File on the host with the variables of the engine that are secret.
    type: path
    required: true
  cache_directory:
    description: Folder on the host for what the engine compiles.
    type: path
    required: true
  host:
    description: Which of the plan's hosts the command is for. Needed where one engine spans several.
    type: str
  image:
    description: What Docker on the host calls the image, if not as the plan does.
    type: str
    default: ""
seealso:
  - plugin: gpufleet.vllm.systemd_command
    plugin_type: filter
"""

EXAMPLES = r"""
argv: >-
  {{ plan | gpufleet.vllm.docker_run(environment_file='/etc/vllm/chat/engine.env',
                                     cache_directory='/var/cache/vllm/chat') }}
"""

RETURN = r"""
_value:
  description: The command and its arguments.
  type: list
  elements: str
"""


def docker_run(
    plan: dict[str, Any], environment_file: str, cache_directory: str, host: str | None = None, image: str = ""
) -> list[str]:
    """Translates what is wrong with the plan into an error that names the instance."""
    try:
        return _launch.docker_run(plan, environment_file, cache_directory, host, image)
    except (ArgumentProblem, UnknownRelease, _launch.HostProblem) as error:
        raise AnsibleFilterError(f"docker_run: instance {plan['name']}: {error}") from error
    except KeyError as error:
        raise AnsibleFilterError(
            f"docker_run: {error} is missing; the input must be a plan of gpufleet.vllm.plan"
        ) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"docker_run": docker_run}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpufleet.vllm.serve_args."""

from __future__ import annotations

DOCUMENTATION = r"""
name: serve_args
short_description: Render a plan as the command line of its vLLM release
description:
  - Turns the arguments of a plan into the words that follow the image name, as the pinned release takes them.
  - The model comes first for images that start C(vllm serve), and as C(--model) for the older ones (up to v0.13.0),
    which start C(vllm.entrypoints.openai.api_server).
  - Every argument is checked against the catalogue of vLLM releases. An argument that the release does not know, a
    value of the wrong type and a value that is none of the choices are errors. The error names what to use instead and
    the releases that know the argument. Nothing is dropped.
positional: _input
options:
  _input:
    description:
      - The plan, as the filter P(gpufleet.vllm.plan#filter) returns it.
      - It needs C(release) (a tag, a version, or a dictionary with C(version)) and C(arguments), a list of
        dictionaries with C(name) and C(value). C(extra_args), a list of raw words, is checked like the rest.
    type: dict
    required: true
  model:
    description: The model to serve. By default it is the argument C(model) of the plan.
    type: str
  entrypoint:
    description:
      - What the container starts, where that is not the entrypoint of the image.
      - V(serve) stands for C(vllm serve), V(api_server) for C(vllm.entrypoints.openai.api_server).
    type: str
    choices: [serve, api_server]
  force:
    description: Names of arguments that are passed on although the catalogue does not accept them.
    type: list
    elements: str
    default: []
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: The command line of an instance
  ansible.builtin.debug:
    msg: "{{ {'release': 'v0.32.0', 'arguments': arguments} | gpufleet.vllm.serve_args(model='/models/Qwen3-8B') }}"
  vars:
    arguments:
      - {name: max_model_len, value: 8192}
      - {name: enable_prefix_caching, value: true}
  # => ["/models/Qwen3-8B", "--max-model-len", "8192", "--enable-prefix-caching"]

- name: Pass on an argument that a patched image adds
  ansible.builtin.debug:
    msg: "{{ my_plan | gpufleet.vllm.serve_args(force=['my_backend']) }}"
"""

RETURN = r"""
_value:
  description: The words that follow the image name, ready for C(docker run).
  type: list
  elements: str
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._catalogue import ArgumentProblem, UnknownRelease, serve_args


def render(
    plan: Mapping[str, Any], model: str | None = None, force: Iterable[str] = (), entrypoint: str | None = None
) -> list[str]:
    """The filter; see its documentation."""
    if not isinstance(plan, Mapping):
        raise AnsibleFilterError(
            f"serve_args: a plan is a dictionary, not {type(plan).__name__}; pass the result of gpufleet.vllm.plan"
        )
    if entrypoint not in (None, "serve", "api_server"):
        raise AnsibleFilterError(f"serve_args: entrypoint is '{entrypoint}'; it may be serve or api_server")
    try:
        return serve_args(dict(plan), model=model, force=force, entrypoint=entrypoint)
    except (ArgumentProblem, UnknownRelease) as error:
        raise AnsibleFilterError(f"serve_args: {error}") from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serve_args": render}

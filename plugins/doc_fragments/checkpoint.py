# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the options that checkpoint and checkpoint_source have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Use: extends_documentation_fragment: gpufleet.vllm.checkpoint."""

    DOCUMENTATION = r"""
options:
  source:
    description:
      - Where the checkpoint comes from.
      - A directory is C(path) with C(on); a repository of a hub is C(repository) with C(revision), C(hub) and C(on).
    type: dict
    suboptions:
      path:
        description: Directory of the checkpoint, or its folder in a Hugging Face cache.
        type: str
      repository:
        description: Repository on a hub, for example V(Qwen/Qwen3-8B).
        type: str
      revision:
        description: Commit of the repository. A branch or a tag is refused, because it can change.
        type: str
      hub:
        description: Which hub.
        type: str
        choices: [huggingface, modelscope]
        default: huggingface
      directory:
        description:
          - Folder that keeps downloads where they are made. The default is C(/var/lib/vllm/downloads) for root, else
            C(~/.cache/gpufleet-vllm/downloads).
        type: path
      "on":
        description:
          - Where the directory is, or where the download is made.
          - V(host) is the host itself, V(controller) the machine that Ansible runs on; anything else is the name of
            another host in the inventory.
        type: str
        default: host
      transfer_address:
        description:
          - For another host, the address on which it hands out the checkpoint. The default are those of its addresses
            that lead to the host that gets it.
        type: str
      transfer_port:
        description: For another host, the TCP port on which it hands out the checkpoint. By default any that is free.
        type: int
        default: 0
  hub_python:
    description: Python that has C(huggingface_hub) or C(modelscope) where the download is made. By default Ansible's.
    type: path
  hub_token:
    description:
      - Token for a gated or private repository. It is handed over in the environment and stands in no command line.
      - If empty, what the environment there and the library's own login have is used.
    type: str
  wait:
    description: Return when the work is done. The action plugin sets it to follow the work.
    type: bool
    default: true
  job:
    description: The job that is followed. Set by the action plugin.
    type: str
"""

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs on the controller, see plugins/action/support_bundle.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Writes a support bundle without secrets on the controller
description:
  - Writes texts and data as files of a compressed archive on the controller, for somebody who helps.
  - Keys, tokens, passwords, C(Authorization) headers, passwords in URLs and the names of users in paths and addresses
    are taken out of every file. A file C(README) says what is in the archive and what was taken out.
  - The archive is readable by its owner only. Read it before you send it.
author:
  - gpufleet maintainers (@gpufleet)
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    support: none
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)).
options:
  path:
    description: The archive to write, ending in C(.tar.gz). Its folder must exist.
    type: path
    required: true
  files:
    description: Content by path within the archive. What is not text is written as JSON.
    type: dict
    required: true
  secrets:
    description: Values that are secret and known, to be taken out wherever they stand.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Write down what support needs
  gpufleet.vllm.support_bundle:
    path: vllm-support.tar.gz
    files:
      gpu01/chat/log: "{{ evidence.log }}"
      gpu01/chat/evidence.json: "{{ evidence }}"
"""

RETURN = r"""
path:
  description: Where the archive was written.
  returned: always
  type: str
  sample: /srv/vllm-support.tar.gz
names:
  description: The files in it.
  returned: always
  type: list
  elements: str
"""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation fragments for the attributes that the modules of this collection declare."""

from __future__ import annotations


class ModuleDocFragment:
    """Use: extends_documentation_fragment: gpufleet.vllm.attributes (and .info_module, .facts)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed (or would change in C(check_mode)), when in diff mode.
"""

    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module only reads. It does the same in check mode.
  diff_mode:
    support: N/A
    details:
      - This module does not change anything.
"""

    FACTS = r"""
options: {}
attributes:
  facts:
    description: Action returns an C(ansible_facts) dictionary that will update existing host facts.
"""

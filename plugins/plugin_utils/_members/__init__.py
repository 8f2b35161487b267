# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of one engine that spans several: network, launch, checks across them. Private to gpufleet.vllm.

Pure functions. What a host tells of itself is the result of the module gpufleet.vllm.member_info.
"""

from __future__ import annotations

from .checks import check_content, check_members, check_reach
from .launch import LAUNCHES, describe_launch, method_of, ports_of
from .network import MemberError, choose_network

__all__ = [
    "LAUNCHES",
    "MemberError",
    "check_content",
    "check_members",
    "check_reach",
    "choose_network",
    "describe_launch",
    "method_of",
    "ports_of",
]

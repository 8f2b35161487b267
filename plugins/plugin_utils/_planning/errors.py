# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with an instance as it was written. Private to the collection gpufleet.vllm."""

from __future__ import annotations


class InstanceError(ValueError):
    """A variable of an instance that nobody can plan with: which one, its value, what is wrong, what would be right."""

    def __init__(self, instance: str, variable: str, value: object, fault: str, remedy: str) -> None:
        super().__init__(f"instance '{instance}': {variable} {value!r} {fault}. {remedy}")
        self.instance = instance
        self.variable = variable
        self.value = value

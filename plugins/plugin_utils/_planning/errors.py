# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with instances as they were written, all of it at once. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class InstanceError(ValueError):
    """A variable of an instance that nobody can plan with: which one, its value, what is wrong, what would be right.

    errors: this one, or all that were found (class InstanceErrors).
    """

    def __init__(
        self, instance: str, variable: str, value: object, fault: str, remedy: str = "", hosts: Iterable[str] = ()
    ) -> None:
        where = ", ".join(hosts)
        text = f"vllm_instances[{instance}].{variable} {value!r} {fault}. {remedy}".rstrip()
        super().__init__(f"{where}: {text}" if where else text)
        self.instance, self.variable, self.value = instance, variable, value
        self._fault, self._remedy = fault, remedy
        self.errors: tuple[InstanceError, ...] = (self,)

    def on(self, hosts: Iterable[str]) -> InstanceError:
        """The same, said of an instance on these hosts."""
        return InstanceError(self.instance, self.variable, self.value, self._fault, self._remedy, hosts)


class InstanceErrors(InstanceError):
    """Several faults, one a line."""

    def __init__(self, errors: Iterable[InstanceError]) -> None:
        unique = tuple({str(error): error for error in errors}.values())
        first = unique[0]
        super().__init__(first.instance, first.variable, first.value, "")
        self.errors = unique
        self.args = ("\n".join(map(str, unique)),)


class Faults:
    """Collects what is wrong, so that a user reads all of it after one run."""

    def __init__(self) -> None:
        self.found: list[InstanceError] = []

    def attempt(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """What read returns; None, and its faults kept, where it raises InstanceError."""
        try:
            return read(*arguments)
        except InstanceError as error:
            self.found += error.errors
            return None

    def refuse(self) -> None:
        """Raises what was found, if anything was."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise InstanceErrors(self.found)


def refused_pin(instance: str, error: Mapping[str, Any]) -> InstanceError:
    """An argument that the release does not take, as an error of the instance."""
    return InstanceError(
        instance, str(error["variable"]), error["value"], f"is refused: {str(error['message']).rstrip('.')}"
    )

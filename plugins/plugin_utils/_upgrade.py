# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an upgrade means for the instances of a host: the catalogue's report and both plans. Private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._catalogue import upgrade_report
from ._planning import plan_instances
from ._planning.fleet import described
from ._planning.verdicts import FITTING

SEVERITIES = ("blocker", "change", "notice")
VERDICTS = {"blocker": "blocked", "change": "attention", "notice": "ready"}

REMARKABLE_PERCENT = 1.0
"""A KV cache that shrinks by less is within what two starts of one engine differ by."""


def upgrade_reports(
    instances: Sequence[Mapping[str, Any]],
    target: str,
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    inventory_hosts: Sequence[str] = (),
    current_plans: Mapping[str, Mapping[str, Any]] | None = None,
    receipts: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The report of each instance, as upgrade_report() gives it, with `hosts`, and `memory` now and then.

    `memory` has `verdict`, `needs` and `tokens` of the KV cache under `now` and `then`; what changes for the worse is a
    finding. Takes what plan_instances() takes. Raises UnknownRelease and InstanceError.
    """
    names = list(inventory_hosts) or [str(host.get("name") or f"host{index}") for index, host in enumerate(hosts)]
    named = [{**host, "name": name} for host, name in zip(hosts, names, strict=True)]
    upgraded = [{**instance, "image": image_of(str(instance.get("image")), target)} for instance in instances]
    now = plan_instances(instances, hosts, checkpoints, names, current_plans, receipts)
    then = plan_instances(upgraded, hosts, checkpoints, names, None, receipts)
    return [
        _report(instance, target, named, checkpoints, before, after)
        for instance, before, after in zip(instances, now, then, strict=True)
    ]


def image_of(image: str, target: str) -> str:
    """The image with the tag of the target; the target itself where it is a whole image."""
    if ":" in target or "/" in target:
        return target
    repository = image.partition("@")[0].rpartition(":")[0] or image
    return f"{repository}:{'v' if target[:1].isdigit() else ''}{target}"


def _report(
    instance: Mapping[str, Any],
    target: str,
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> dict[str, Any]:
    checkpoint = checkpoints.get(str(instance.get("checkpoint")))
    whole = {**instance, **({"checkpoint": described(checkpoint)} if checkpoint else {})}
    report = upgrade_report(whole, target, hosts)
    found = [*report["findings"], *_memory_findings(before, after)]
    if after["verdict"] == "unsupported" and all(item["severity"] != "blocker" for item in found):
        found.append(_finding("blocker", "rules", f"refused on both releases: {'; '.join(after['needs'])}"))
    found.sort(key=lambda item: SEVERITIES.index(item["severity"]))
    return {
        **report,
        "findings": found,
        "verdict": VERDICTS[found[0]["severity"] if found else "notice"],
        "hosts": [str(host["name"]) for host in hosts],
        "memory": {"now": _memory(before), "then": _memory(after)},
    }


def _finding(severity: str, subject: str, message: str) -> dict[str, str]:
    return {"severity": severity, "subject": subject, "message": message}


def _memory(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"verdict": plan["verdict"], "needs": plan["needs"], "tokens": plan["kv"].get("tokens")}


def _memory_findings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A promise that is not kept on the target, and a KV cache of another size."""
    needs = "; or ".join(after["needs"])
    if after["verdict"] == "does_not_fit":
        yield _finding("blocker", "memory", f"it does not fit on the target; what would: {needs}")
    elif (before["verdict"], after["verdict"]) == ("fits", "fits_reduced"):
        yield _finding("change", "memory", f"the whole promise is kept now and not on the target; what would: {needs}")
    elif after["verdict"] == "unverified" != before["verdict"]:
        yield _finding("change", "memory", "how the target caches this model is not understood: the plan is unverified")
    elif before["verdict"] in FITTING and after["verdict"] in FITTING:
        yield from _cache_findings(before["kv"].get("tokens"), after["kv"].get("tokens"))


def _cache_findings(now: int | None, then: int | None) -> Iterator[dict[str, str]]:
    percent = 100 * (then - now) / now if now and then else 0.0
    if abs(percent) >= REMARKABLE_PERCENT:
        message = f"it is planned to hold {then:,} tokens in place of {now:,} ({percent:+.1f} %)"
        yield _finding("change" if percent < 0 else "notice", "KV cache", message)

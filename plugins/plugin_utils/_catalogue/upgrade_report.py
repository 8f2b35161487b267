# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an upgrade of an instance to another release breaks or changes, before anything is pulled (private)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .changes import changes
from .matrix import matrix
from .releases import Release, release
from .serve_args import Given, check, name_of, spell, split_words

WORSE = {"supported": 0, "unverified": 1, "degraded": 1, "unsupported": 2}
Finding = dict[str, str]


def upgrade_report(instance: Mapping[str, Any], target: str, hosts: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Compares an instance as it runs now with the same instance on ``target``.

    ``instance`` has ``name``, ``image`` (or ``release``), ``engine_args``, ``extra_args``, ``environment`` and, where
    it is described, ``checkpoint`` (the normal form of ``describe_config``). ``hosts`` are what ``gpu_info`` returned
    for the hosts that it runs on, each perhaps with its ``name``. ``target`` is a tag, a version or an image.

    Returns ``{"instance", "from", "to", "verdict", "findings", "changes"}``. ``verdict`` is ``blocked`` (it would not
    start), ``attention`` (it starts, and something that the instance relies on changes) or ``ready``. A finding is
    ``{"severity": "blocker|change|notice", "subject", "message"}``, the worst first.
    Raises :class:`~.releases.UnknownRelease`.
    """
    old, new = release(str(instance.get("image") or instance.get("release"))), release(target)
    differences = changes(old, new)
    findings = [
        *_arguments(instance, old, new),
        *_environment(instance, differences),
        *_hosts(instance, old, new, hosts),
        *_defaults(instance, old, new, hosts, differences),
        *_image(instance, differences),
        *_routes(old, new, differences),
        *_architectures(differences),
    ]
    order = ("blocker", "change", "notice")
    findings.sort(key=lambda finding: order.index(finding["severity"]))
    worst = findings[0]["severity"] if findings else "notice"
    return {
        "instance": instance.get("name"),
        "from": str(old),
        "to": str(new),
        "findings": findings,
        "verdict": {"blocker": "blocked", "change": "attention", "notice": "ready"}[worst],
        "changes": differences,
    }


def _finding(severity: str, subject: str, message: str) -> Finding:
    return {"severity": severity, "subject": subject, "message": message}


def given_arguments(instance: Mapping[str, Any], known: Release) -> list[Given]:
    """The pins and the raw words of an instance, as one release understands them."""
    given = dict(instance.get("engine_args") or {})
    pins = [name_of(known, str(name), value, "engine_args") for name, value in given.items()]
    return pins + split_words(known, [str(word) for word in instance.get("extra_args") or []])


def _arguments(instance: Mapping[str, Any], old: Release, new: Release) -> Iterator[Finding]:
    """Arguments that the target refuses; what is refused already today is no matter of the upgrade."""
    refused_today = {given.name for given in given_arguments(instance, old) if check(old, given)}
    for given in given_arguments(instance, new):
        for problem in [] if given.name in refused_today else check(new, given):
            yield _finding("blocker", f"{given.where}: {spell(given.name)}", problem)
        argument, before = new.argument(given.name), old.argument(given.name)
        if argument is not None and argument.deprecated and before is not None and not before.deprecated:
            yield _finding("notice", f"{given.where}: {spell(given.name)}", f"deprecated in {new}: {argument.help}")


def _environment(instance: Mapping[str, Any], differences: Mapping[str, Any]) -> Iterator[Finding]:
    gone = set(differences["environment"]["removed"])
    for name in dict(instance.get("environment") or {}):
        if name in gone:
            yield _finding(
                "change", f"environment: {name}", "the target does not read this environment variable any more"
            )


def _hosts(
    instance: Mapping[str, Any], old: Release, new: Release, hosts: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Rows of the matrix that are worse on the target than today."""
    checkpoint = instance.get("checkpoint")
    described = checkpoint if isinstance(checkpoint, Mapping) else None
    pins = dict(instance.get("engine_args") or {})
    for host in hosts:
        today = {row["subject"]: row for row in matrix(old, host, described, pins)}
        for row in matrix(new, host, described, pins):
            before = today.get(row["subject"], {"status": "supported"})
            if WORSE[row["status"]] > WORSE[before["status"]]:
                severity = "blocker" if row["status"] == "unsupported" else "change"
                yield _finding(severity, f"{host.get('name', 'host')}: {row['subject']}", row["reason"])


def _defaults(
    instance: Mapping[str, Any],
    old: Release,
    new: Release,
    hosts: Sequence[Mapping[str, Any]],
    differences: Mapping[str, Any],
) -> Iterator[Finding]:
    """Defaults that change under an instance because it does not set them."""
    given = {item.name for item in given_arguments(instance, new)}
    for name, (before, after) in differences["arguments"]["default_changed"].items():
        if name not in given:  # None means that vLLM chooses at start, so nothing can be said about the effect
            severity = "notice" if before is None or after is None else "change"
            yield _finding(severity, f"default: {spell(name)}", f"not set, so it changes from {before} to {after}")
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        for gpu in _cards(hosts) if name not in given else []:
            before, after = old.default(name, gpu), new.default(name, gpu)
            if before != after:
                yield _finding(
                    "change",
                    f"default: {spell(name)}",
                    f"not set, so on {gpu.get('name')} it changes from {before} to {after}",
                )


def _cards(hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One card of each kind."""
    kinds = {
        (gpu.get("name"), gpu.get("memory_total_mib")): dict(gpu) for host in hosts for gpu in host.get("gpus") or []
    }
    return list(kinds.values())


def _image(instance: Mapping[str, Any], differences: Mapping[str, Any]) -> Iterator[Finding]:
    image = differences["image"]
    if "min_driver" in image:
        yield _finding(
            "notice",
            "driver",
            f"the least driver of the image changes from {image['min_driver'][0]} to {image['min_driver'][1]}",
        )
    if image.get("has_ray") == [True, False]:
        uses_ray = dict(instance.get("engine_args") or {}).get("distributed_executor_backend") == "ray"
        yield _finding(
            "blocker" if uses_ray else "notice",
            "ray",
            "the target's image contains no Ray; an engine over several hosts uses nnodes, node_rank and "
            "master_addr instead",
        )
    if "entrypoint" in image:
        yield _finding(
            "notice", "entrypoint", f"the image starts {image['entrypoint'][1]} in place of {image['entrypoint'][0]}"
        )


def _routes(old: Release, new: Release, differences: Mapping[str, Any]) -> Iterator[Finding]:
    for route in differences["routes"]["opened"]:
        why = "new" if route not in old.routes else "guarded or switched off until now"
        yield _finding(
            "change", f"route: {route}", f"answers without the API key in {new} ({why}); close it in the gateway"
        )
    closed = sorted(set(old.unguarded_routes) & set(new.guarded_routes))
    if closed:
        yield _finding("notice", "routes", f"the API key now guards {', '.join(closed)}: clients that sent none must")


def _architectures(differences: Mapping[str, Any]) -> Iterator[Finding]:
    found = differences["architectures"]
    if found["added"]:
        yield _finding("notice", "architectures gained", ", ".join(found["added"]))
    if found["removed"]:
        yield _finding("notice", "architectures lost", ", ".join(found["removed"]))

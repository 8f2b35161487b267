# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a start-up means that boot_info describes: has it ended, is it late, what to tell. Private to the collection.

``boot`` is what boot_info returns, ``unit`` its RV(unit), ``findings`` what diagnose returns.
"""

from __future__ import annotations

import textwrap
from typing import Any

from ..module_utils import _boot_log_patterns as patterns

_MIB = 1 << 20
_COLUMNS = 100
_LAST_LINES = 40

WAITING = "waiting for the other hosts"
"""What a member of an engine over several hosts does before its start, until all are there (ExecStartPre). The members
of a deployment begin their starts at the same time: one that does not come within two minutes does not come."""

ENDING = "ending"
"""Between the end of an engine and what systemd makes of it: its log is archived. Whether it failed or was stopped is
not known yet."""

# How long a phase may last, in seconds, before it is taken for stuck. Generous on purpose: a stop of an engine that
# would have served costs more than some minutes. Public start-up logs show 75 s for compiling, 151 s for capturing
# graphs and, the longest, 16 minutes for FlashInfer's autotuning of a large MoE model, which is in "warming up".
_DEADLINES = {
    WAITING: 120.0,
    # TimeoutStopSec of the unit, for the engine and again for the archive.
    ENDING: 180.0,
    "starting": 600.0,
    "loading weights": 300.0,
    "compiling": 1200.0,
    "profiling": 900.0,
    "capturing graphs": 900.0,
    "warming up": 2400.0,
}
# Of a checkpoint of unknown size.
_LOADING_SECONDS = 3600.0


# A disk that others use at the same time is slower than when it was measured.
_SLOWER_THAN_MEASURED = 3


def deadlines(bytes_to_read: int | None, read_mib_per_second: int, load_seconds: float = 0) -> dict[str, float]:
    """Returns the seconds that each phase may last. Loading gets the time that reading the bytes takes on top.

    load_seconds: what reading took by a measurement of the disk, if there is one.
    """
    reading = _LOADING_SECONDS if bytes_to_read is None else bytes_to_read / _MIB / read_mib_per_second
    reading = max(reading, _SLOWER_THAN_MEASURED * load_seconds)
    return {**_DEADLINES, "loading weights": _DEADLINES["loading weights"] + reading}


def ending(first_unit: dict[str, Any], boot: dict[str, Any], member: bool = False) -> str | None:
    """Returns how the start-up ended: serving, absent, failed, restarted, stopped or followed; None if it goes on.

    first_unit: the unit as it was when the waiting began. A unit that restarted before that is not to blame now.
    member: whether the engine spans hosts; then it followed if its watcher started it anew, as another had ended.
    """
    unit = boot["unit"]
    if boot["healthy"]:
        return "serving"
    if unit["load_state"] == "not-found":
        return "absent"
    if boot["phase"] == "failed":
        return "failed"
    if unit["n_restarts"] > first_unit["n_restarts"]:
        return "restarted"
    if member and first_unit["invocation_id"] and unit["invocation_id"] != first_unit["invocation_id"]:
        return "followed"
    return "stopped" if boot["phase"] == "stopped" else None


def as_seen(boot: dict[str, Any], member: bool) -> dict[str, Any]:
    """Returns what boot_info returns, with the phases that only who waits for an engine tells apart.

    member: whether the engine spans hosts; then it waits for the others before its start.
    """
    if boot["unit"]["active_state"] == "deactivating":
        return {**boot, "phase": ENDING, "progress": None}
    waits = member and boot["phase"] == "starting" and boot["unit"]["sub_state"] == "start-pre"
    return {**boot, "phase": WAITING, "progress": None} if waits else boot


def phase_line(boot: dict[str, Any]) -> str:
    """Returns the phase with its progress: "loading weights, 7 of 30 shards", "capturing graphs, 43 %"."""
    phase, progress = str(boot["phase"]), boot["progress"]
    if not progress:
        return phase
    if phase == "loading weights":
        return f"{phase}, {progress['done']} of {progress['total']} shards"
    return f"{phase}, {progress['percent']} %"


def duration(seconds: float) -> str:
    """Returns "0:42" or "1:02:03"."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def failure_message(
    host: str, name: str, unit: dict[str, Any], end: str, findings: list[dict[str, Any]], log: str
) -> str:
    """Returns what went wrong, the line that proves it, what to change and the next command."""
    if end == "absent":
        return (
            f"{host}: there is no unit vllm-{name}.service. Next: deploy the instance "
            f"(ansible-playbook gpufleet.vllm.deploy_vllm --limit {host})"
        )
    if end == "stopped":
        return f"{host}: vllm-{name} was stopped. Next, on {host}: systemctl start vllm-{name}"
    if end == "followed":
        return (
            f"{host}: vllm-{name} was ended, as it had ended on another of its hosts, or that host did not answer. "
            f"Next, on {host}: journalctl -u vllm-members@{name} -n 20 --no-pager"
        )
    title = findings[0]["title"] if findings else "its log does not say why"
    cause = _finding_lines(findings[0]) if findings else [_wrap(f"Last line: {_last_line(log)}")]
    return "\n".join([f"{host}: vllm-{name} failed to start: {title}", *cause, _exit(unit), _next(host, name)])


def timeout_message(
    host: str,
    name: str,
    boot: dict[str, Any],
    waited: float,
    in_phase: float,
    findings: list[dict[str, Any]],
    log: str = "",
) -> str:
    """Returns where the start-up hangs and the next command."""
    lines = [
        f"{host}: vllm-{name} does not serve after {duration(waited)}: {phase_line(boot)}, "
        f"unchanged for {duration(in_phase)}"
    ]
    if boot["phase"] == WAITING:
        return "\n".join([*lines, _wrap(_last_line(log)), _next(host, name)])
    if findings:
        lines += [f"Perhaps: {findings[0]['title']}", *_finding_lines(findings[0])]
    lines.append("If it only needs longer: -e vllm_instance_start_timeout=SECONDS (the option timeout of wait_ready)")
    lines.append(_next(host, name))
    return "\n".join(lines)


def shorten(text: str) -> str:
    """Returns the text on one line that fits the terminal."""
    return textwrap.shorten(text, _COLUMNS, placeholder=" ...")


def last_lines(log: str) -> str:
    """Returns as much of a log as a person reads on a terminal."""
    return "\n".join(log.splitlines()[-_LAST_LINES:])


def _wrap(text: str) -> str:
    return textwrap.fill(text, _COLUMNS, max_lines=6, placeholder=" ...")


def _finding_lines(finding: dict[str, Any]) -> list[str]:
    change = finding["change"]
    advice = f"Change: {change['variable']} from {change['from']} to {change['to']}" if change else None
    evidence = patterns.PREFIX.sub("", finding["evidence"]["line"])
    return [_wrap(f"Evidence: {evidence}"), advice or _wrap(finding["explanation"])]


def _exit(unit: dict[str, Any]) -> str:
    ended = f", {unit['exec_code']} with {unit['exec_status']}" if unit["exec_code"] else ""
    return f"Unit: {unit['active_state']} ({unit['sub_state']}), {unit['result']}{ended}, {unit['n_restarts']} restarts"


def _last_line(log: str) -> str:
    return next((line for line in reversed(log.splitlines()) if line.strip()), "(none)")


def _next(host: str, name: str) -> str:
    return f"Next, on {host}: journalctl -u vllm-{name} -n 200 --no-pager"

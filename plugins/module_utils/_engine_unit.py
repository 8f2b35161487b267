# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of an engine on this host: its state, its journal, its /health. Private to the collection.

Every function gets ``run``: a callable that takes a list of arguments and returns (rc, stdout, stderr), as
``AnsibleModule.run_command`` does.
"""

from __future__ import annotations

from . import _boot_log_patterns as patterns

# A start-up writes a few thousand lines; a serving engine goes on for ever. The start is at the head.
HEAD_LINES = 20000

_PROPERTIES = {
    "LoadState": "load_state",
    "ActiveState": "active_state",
    "SubState": "sub_state",
    "Result": "result",
    "ExecMainCode": "exec_code",
    "ExecMainStatus": "exec_status",
    "NRestarts": "n_restarts",
    "InvocationID": "invocation_id",
    "ActiveEnterTimestamp": "active_since",
    "ActiveEnterTimestampMonotonic": "active_monotonic_us",
}
_NUMBERS = ("exec_status", "n_restarts", "active_monotonic_us")
# An engine has logged its first line by then, if it logs at all.
_SILENT_SECONDS = 300
# waitid(2): CLD_EXITED, CLD_KILLED, CLD_DUMPED, as systemd shows them.
_EXEC_CODES = {"1": "exited", "2": "killed", "3": "dumped"}


def read_unit(run, unit):
    """Returns ``{"name", "load_state", "active_state", "sub_state", "result", "exec_code", "exec_status",
    "n_restarts", "invocation_id", "active_since", "active_monotonic_us"}`` of a unit. A unit that does not exist has
    load_state not-found."""
    _rc, out, _err = run(["systemctl", "show", unit, "--property=" + ",".join(sorted(_PROPERTIES))])
    shown = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    state = {"name": unit}
    for shown_name, name in _PROPERTIES.items():
        value = shown.get(shown_name, "")
        if name in _NUMBERS:
            value = int(value) if value.isdigit() else 0
        elif name == "exec_code":
            value = _EXEC_CODES.get(value)
        state[name] = value
    return state


def read_journal(run, invocation_id, lines):
    """Returns ``(log, tail, error)``: what one activation of a unit logged, of a very long log its start and its last
    ``lines`` lines; these last lines alone; and why nothing could be read, or None. systemd's own lines are in it."""
    if not invocation_id:
        return "", "", None
    journalctl = [
        "journalctl",
        "--no-pager",
        "--quiet",
        "--all",
        "--output=cat",
        "_SYSTEMD_INVOCATION_ID=" + invocation_id,
        "+",
        "INVOCATION_ID=" + invocation_id,
    ]
    _rc, log, err = run(["sh", "-c", f'"$@" | head -n {HEAD_LINES}', "sh"] + journalctl)
    if not log:
        return "", "", err.strip() or None
    if log.count("\n") < HEAD_LINES:
        return log, "\n".join(log.splitlines()[-lines:]), None
    _rc, tail, err = run(journalctl + ["--lines=" + str(lines)])
    return log + tail, tail, err.strip() or None


def phase_of(unit, logged_phase, healthy):
    """The phase of the engine: what /health and systemd say outweighs what the log says."""
    if unit["active_state"] == "failed" or unit["sub_state"] == "auto-restart":
        return patterns.FAILED
    if not _runs(unit):
        return patterns.STOPPED
    if healthy:
        return patterns.SERVING
    # The log says "serving" when the server starts to listen. Without an answer it still warms up, or is stuck.
    if logged_phase == patterns.SERVING and healthy is False:
        return patterns.WARMING
    return logged_phase or patterns.STARTING


def may_listen(unit, logged_phase, version, now):
    """Whether the engine can be who answers on its port. If not, it is somebody else, such as an engine not stopped.

    It can if the unit has a process and the log says that the server was started. A log without a line of vLLM (its
    start was rotated away, or it logs nothing) leaves only the time that has gone by since. now: time.monotonic().
    """
    if not _runs(unit):
        return False
    if version is None and logged_phase in (None, patterns.STARTING):
        return now - unit["active_monotonic_us"] / 1e6 > _SILENT_SECONDS
    return logged_phase in (patterns.WARMING, patterns.SERVING)


def _runs(unit):
    return unit["active_state"] in ("active", "activating", "reloading") and unit["sub_state"] != "auto-restart"


def health_url(address, port):
    """The URL that tells whether the engine serves, as this host reaches it. It needs no API key."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)
    return "http://{}:{}/health".format("[" + host + "]" if ":" in host else host, port)

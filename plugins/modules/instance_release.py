#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes an instance to its host as a numbered release, and goes back to an earlier one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_release
short_description: Writes an instance to its host as a numbered release, and goes back to an earlier one
description:
  - Compares what is deployed with what is wanted, setting by setting, and says what changes and whether the engine must
    be started anew for it.
  - What changes becomes a release in C(/var/lib/vllm/NAME/releases/NNNN), and its files come into use. It is
    C(deploying) until O(state=served) says that it was proven, or O(state=restored) goes back.
  - Files are written as a whole or not at all. A run that was cut off is continued, or undone, by the next.
  - Starts and stops nothing. An engine whose unit has failed must be started anew, too.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - One line for each setting. Of the environment it tells only which variables change.
options:
  name:
    description:
      - Name of the instance. Its unit is C(vllm-NAME.service).
    type: str
    required: true
  state:
    description:
      - With V(present) the instance is on the host as wanted.
      - With V(served) the current release is known to serve. The key before it is forgotten, old releases are pruned.
      - With V(restored) an earlier release is in use again, with the current key; if the current release was still
        C(deploying), with the key of then.
    type: str
    choices: [present, served, restored]
    default: present
  plan:
    description:
      - The plan, written to C(/etc/vllm/NAME/plan.json). Needed with O(state=present).
    type: dict
  files:
    description:
      - Text of the other files. Needed with O(state=present).
    type: dict
    suboptions:
      unit:
        description:
          - The systemd unit.
          - Its C(ExecStart) has one option a line, as P(gpufleet.vllm.systemd_command#filter) writes it.
        type: str
        required: true
      smoke:
        description: The smoke test, C(/etc/vllm/NAME/smoke.sh).
        type: str
        required: true
      archive:
        description: What keeps the traces of a failure, C(/etc/vllm/NAME/archive.sh).
        type: str
        required: true
      rollback:
        description:
          - The unit C(vllm-rollback@.service), which goes back without a controller. It runs
            C(/etc/vllm/NAME/release.py), which this module puts there. It belongs to no release.
          - For C(/usr/bin/env python3), in any of the units, the Python is written that the module runs in.
        type: str
      members:
        description:
          - For an engine over several hosts, the unit C(vllm-members@.service), which keeps its members together. It
            runs C(/etc/vllm/NAME/members.py), which this module puts there. It belongs to no release.
        type: str
  environment:
    description:
      - Secret variables of the engine, such as its API key, written to C(/etc/vllm/NAME/engine.env) with mode 0600.
      - They are in no release, in no output and in no difference.
    type: dict
    default: {}
  image_id:
    description:
      - Id or digest of the image on this host. If it is another one, the engine must be started anew.
    type: str
  model_manifest:
    description:
      - Digest of the checkpoint's manifest. If it is another one, the engine must be started anew.
    type: str
  cache_directory:
    description:
      - Folder for what the engine compiles. It is made, with mode 0700.
    type: path
  receipt:
    description:
      - With O(state=served), what the start measured, as P(gpufleet.vllm.receipt#filter) gives it, for
        C(/var/lib/vllm/NAME/receipt.json). Without it, the receipt stays as it is.
    type: dict
  why:
    description:
      - Why this is done, for the release and the ledger.
    type: str
    default: ""
  number:
    description:
      - The release to go back to. Without it, the last that served before the current one.
    type: int
  unproven:
    description:
      - With O(state=restored) and without O(number), go back only from a release that is still C(deploying). The other
        members of an engine over several hosts go back, though the release of one may not have changed.
    type: bool
    default: false
  keep:
    description:
      - How many releases to keep. The one that serves and the one to go back to are always kept.
    type: int
    default: 10
  root:
    description:
      - Folder that stands for C(/), for tests.
    type: path
    default: /
notes:
  - Deployed before there were releases, an instance gets what runs as release 1, which counts as one that served.
seealso:
  - module: gpufleet.vllm.instance_info
  - module: gpufleet.vllm.deploy_lock
"""

EXAMPLES = r"""
- name: Have the instance as planned
  gpufleet.vllm.instance_release:
    name: chat
    plan: "{{ plan }}"
    files:
      unit: "{{ lookup('ansible.builtin.template', 'vllm.service.j2') }}"
      smoke: "{{ lookup('ansible.builtin.template', 'smoke.sh.j2') }}"
      archive: "{{ lookup('ansible.builtin.template', 'archive.sh.j2') }}"
    environment:
      VLLM_API_KEY: "{{ vllm_api_key }}"
    image_id: sha256:0f9d1c3b
  register: release

- name: Start it if need be
  ansible.builtin.systemd_service:
    name: vllm-chat
    state: "{{ 'restarted' if release.restart else 'started' }}"
    daemon_reload: "{{ release.daemon_reload }}"

- name: Say that it serves
  gpufleet.vllm.instance_release:
    name: chat
    state: served

- name: Go back to what served before
  gpufleet.vllm.instance_release:
    name: chat
    state: restored
    why: The new engine ran out of memory.
"""

RETURN = r"""
restart:
  description: Whether the engine must be started anew.
  returned: with O(state=present) and O(state=restored)
  type: bool
undo:
  description: Whether to go back to the release before if the engine does not serve. Also one that is not started anew
    may belong to a release that nothing has proven yet.
  returned: with O(state=present)
  type: bool
daemon_reload:
  description: Whether systemd must read its units again.
  returned: with O(state=present) and O(state=restored)
  type: bool
reasons:
  description: What changes, a sentence each, with its consequence. No secrets are in it.
  returned: with O(state=present)
  type: list
  elements: str
  sample: ["max_model_len 8192 -> 16384 (restart)", "the API key changes (restart)", "description changes (no restart)"]
release:
  description: Number of the release that is in use; in check mode, that would be.
  returned: with O(state=present) and O(state=served)
  type: int
previous:
  description: Number of the last release that served before RV(release), or none.
  returned: with O(state=present)
  type: int
pruned:
  description: Numbers of the releases that were removed.
  returned: with O(state=served)
  type: list
  elements: int
restored:
  description: Number of the release that is in use again, or none where there is none to go back to.
  returned: with O(state=restored)
  type: int
plan:
  description: The plan that is in use again.
  returned: with O(state=restored)
  type: dict
replaced:
  description: Number of the release that was in use before.
  returned: with O(state=restored)
  type: int
image_id:
  description: Id of the image that RV(restored) served with, or none if it is not known.
  returned: with O(state=restored)
  type: str
model_manifest:
  description: Digest of the manifest of the checkpoint that RV(restored) served with, or none if it is not known.
  returned: with O(state=restored)
  type: str
"""

import contextlib
import inspect
import json
import os
import re
import sys
import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _member_watch, _release
from ..module_utils._release_changes import compare

FILES = {
    "unit": {"type": "str", "required": True},
    "smoke": {"type": "str", "required": True},
    "archive": {"type": "str", "required": True},
    "rollback": {"type": "str"},
    "members": {"type": "str"},
}
ARGUMENT_SPEC = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "served", "restored"], "default": "present"},
    "plan": {"type": "dict"},
    "files": {"type": "dict", "options": FILES},
    "environment": {"type": "dict", "default": {}, "no_log": True},
    "image_id": {"type": "str"},
    "model_manifest": {"type": "str"},
    "cache_directory": {"type": "path"},
    "receipt": {"type": "dict"},
    "why": {"type": "str", "default": ""},
    "number": {"type": "int"},
    "unproven": {"type": "bool", "default": False},
    "keep": {"type": "int", "default": 10},
    "root": {"type": "path", "default": "/"},
}

#: Why the engine is started anew although nothing changes, by the state of the current release.
UNPROVEN = {
    "deploying": "release {number} was not proven yet (restart)",
    "restored": "release {number} was gone back to and is not proven yet (restart)",
    "failed": "release {number} failed and is tried again (restart)",
}


def present(instance, params, check, runs=False):
    """Have the instance as wanted; returns what the module returns.

    runs: whether the engine that runs was started from the files that are in use.
    """
    before, after = deployed(instance), wanted(params)
    current = found = _release.current_release(instance)
    if found is None and before["unit"] is not None:
        current = _release.adopt(instance, check)
    before.update((name, current[name] if current else None) for name in ("image_id", "model_manifest"))
    changes = judge(current, compare(before, after), runs)
    release = begin(instance, current, after, changes, params, check) if changes["changed"] else current
    repaired = repair(instance, params, check)
    # A run that was cut off may have written the unit and no more.
    unproven = current is not None and current["state"] != "served"
    return {
        "changed": changes["changed"] or current is not found or bool(repaired),
        "restart": changes["restart"],
        "undo": changes["restart"] or (unproven and runs and bool(current["restart"])),
        "daemon_reload": unproven or before["unit"] != after["unit"] or any("@" in name for name in repaired),
        "reasons": changes["reasons"] + [f"{name} is set right (no restart)" for name in repaired if before["unit"]],
        "release": release["number"],
        "previous": release["previous"],
        "diff": _headed(instance, changes),
    }


def deployed(instance):
    """The deployment that is in use, as compare() takes it."""
    texts = {name: _release.read_text(path) for name, (path, _mode) in instance.files.items()}
    try:
        plan = json.loads(texts["plan.json"] or "null")
    except ValueError:
        plan = None
    lines = (_release.read_text(instance.environment) or "").splitlines()
    return {
        "unit": texts[instance.unit],
        "smoke.sh": texts["smoke.sh"],
        "archive.sh": texts["archive.sh"],
        "plan": plan,
        "environment": dict(line.split("=", 1) for line in lines if "=" in line),
    }


def wanted(params):
    """The deployment that is wanted, as compare() takes it."""
    files = params["files"]
    return {
        "unit": with_this_python(files["unit"]),
        "smoke.sh": files["smoke"],
        "archive.sh": files["archive"],
        "plan": params["plan"],
        "environment": {name: str(value) for name, value in params["environment"].items()},
        "image_id": params["image_id"],
        "model_manifest": params["model_manifest"],
    }


def judge(current, changes, runs=False):
    """The changes, with what the state of the current release adds: what is not proven is started anew.

    Not so the engine of a deployment that was cut off (a lost connection, a controller that was killed) and that runs:
    proving it is enough, and its clients are not interrupted.
    """
    harmless = current is None or (current["state"] == "deploying" and (runs or not current["restart"]))
    if harmless or current["state"] == "served":
        return changes
    reasons = changes["reasons"] + [UNPROVEN[current["state"]].format(**current)]
    return dict(changes, restart=True, reasons=reasons, changed=changes["changed"] or current["state"] == "failed")


def with_this_python(unit):
    """A unit that runs a tool, with the Python that Ansible uses here: python3 of the PATH may be too old for it."""
    return unit.replace("/usr/bin/env python3", sys.executable)


def begin(instance, current, after, changes, params, check):
    """Make a release of the wanted deployment."""
    texts = {name: after[name] for name in ("smoke.sh", "archive.sh")}
    texts["plan.json"] = json.dumps(after["plan"], indent=2) + "\n"
    texts[instance.unit] = after["unit"]
    environment = "".join(f"{name}={value}\n" for name, value in after["environment"].items())
    record = {
        "image": after["plan"].get("image"),
        "image_id": after["image_id"],
        "model_manifest": after["model_manifest"],
        "restart": changes["restart"],
        "reasons": changes["reasons"],
        "why": params["why"],
    }
    return _release.begin(instance, current, texts, environment, record, check)


def repair(instance, params, check):
    """Have the folders, the tools and the modes right that belong to no release. Returns the names of what was not."""
    units = {name: with_this_python(params["files"].get(name) or "") for name in ("rollback", "members")}
    tools = {"release.py": inspect.getsource(_release), _release.ROLLBACK_UNIT: units["rollback"]}
    if units["members"]:
        tools.update({"members.py": inspect.getsource(_member_watch), _release.MEMBERS_UNIT: units["members"]})
    repaired = [name for name, text in tools.items() if text and text != _release.read_text(instance.tools[name][0])]
    modes = dict(instance.files, **instance.tools, **{"engine.env": (instance.environment, 0o600)})
    wrong = [name for name, place in modes.items() if name not in repaired and _has_wrong_mode(*place)]
    directory = params["cache_directory"]
    if directory and not (os.path.isdir(directory) and not _has_wrong_mode(directory, 0o700)):
        wrong.append(directory)
        modes[directory] = (directory, 0o700)
    if not check:
        for name in repaired:
            _release.write(instance.tools[name][0], tools[name], instance.tools[name][1])
        for path, mode in (modes[name] for name in wrong):
            _set_mode(path, mode)
    return repaired + wrong


def _has_wrong_mode(path, mode):
    return os.path.exists(path) and os.stat(path).st_mode & 0o7777 != mode


def _set_mode(path, mode):
    if not os.path.exists(path):
        os.makedirs(path)
    os.chmod(path, mode)


def _headed(instance, changes):
    effect = "the engine is started anew" if changes["restart"] else "the engine runs on"
    headers = {"before_header": f"{instance.unit} (deployed)", "after_header": f"{instance.unit} (wanted; {effect})"}
    return dict(changes["diff"], **headers)


# --- the module ---------------------------------------------------------------------------------------------------


def served(instance, params, check):
    """The current release serves; returns what the module returns."""
    result = _release.serve(instance, params["keep"], params["why"], check)
    text = json.dumps(params["receipt"], indent=2) + "\n"
    if params["receipt"] is None or text == _release.read_text(instance.receipt):
        return result
    if not check:
        _release.write(instance.receipt, text, 0o644)
    return dict(result, changed=True)


def restored(instance, params, check):
    """An earlier release is in use again; returns what the module returns."""
    result = _release.restore(instance, params["number"], params["why"], check, params["unproven"])
    return dict(result, daemon_reload=result["restart"])


def look_at_unit(module, instance, result):
    """After failures in a row systemd starts a unit no more: then a new start is due although nothing changes."""
    if module.params["state"] != "present" or module.params["root"] != "/" or result["restart"]:
        return result
    code, _output, _error = module.run_command(["systemctl", "is-failed", "--quiet", instance.unit])
    if code:
        return result
    return dict(
        result, restart=True, undo=True, reasons=result["reasons"] + ["the engine has failed and is down (restart)"]
    )


def runs_what_is_in_use(module, instance):
    """Whether systemd has started the engine that runs after the files of its release were put in use."""
    # The members of an engine over several hosts are started together or not at all.
    if module.params["root"] != "/" or module.params["plan"].get("launch") or not os.path.exists(instance.environment):
        return False
    names = "ActiveState,SubState,NeedDaemonReload,ExecMainStartTimestampMonotonic"
    code, output, _error = module.run_command(["systemctl", "show", instance.unit, "--property", names])
    return code == 0 and started_after(
        dict(line.split("=", 1) for line in output.splitlines() if "=" in line), instance
    )


def started_after(shown, instance, now=None):
    """Whether a unit runs and was started after the files in use were written, by the properties that systemd shows.

    now: (time since the epoch, time of the monotonic clock), of this moment if it is left out.
    """
    if (shown.get("ActiveState"), shown.get("SubState"), shown.get("NeedDaemonReload")) != ("active", "running", "no"):
        return False
    clock, monotonic = now or (time.time(), time.monotonic())
    started = clock - (monotonic - int(shown.get("ExecMainStartTimestampMonotonic") or 0) / 1e6)
    places = [path for path, _mode in instance.files.values()]
    places += [instance.environment, os.path.join(instance.current, "release.json")]
    return all(os.path.exists(path) and os.stat(path).st_mtime < started for path in places)


STATES = {"present": present, "served": served, "restored": restored}


def check_environment(module):
    """Docker takes one variable a line."""
    for name, value in module.params["environment"].items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\n" in str(value):
            module.fail_json(
                msg=f"environment of {module.params['name']}: {name!r} cannot be written to engine.env. A name has "
                "letters, digits and underscores, a value has one line. Next: look at vllm_api_keys"
            )


def main():
    """Run the module."""
    required = [("state", "present", ["plan", "files"])]
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, required_if=required, supports_check_mode=True)
    check_environment(module)
    params, check = module.params, module.check_mode
    instance = _release.Instance(params["name"], params["root"])
    try:
        with contextlib.nullcontext() if check else _release.locked(instance):
            given = {"runs": runs_what_is_in_use(module, instance)} if params["state"] == "present" else {}
            result = look_at_unit(module, instance, STATES[params["state"]](instance, params, check, **given))
    except _release.ReleaseError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The files of {params['name']} cannot be written: {error}. Free space or mend the file system, then "
            "run the same command again: it goes on from there. Next: df -h /etc/vllm /var/lib/vllm"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()

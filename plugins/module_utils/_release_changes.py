# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes between what is deployed and what is wanted, setting by setting. Private to the collection.

A deployment is ``{"unit", "smoke.sh", "archive.sh": text or None, "plan": dict or None, "environment": {variable:
value}, "image_id", "model_manifest": str or None}``. The values of the environment are secrets: they are compared,
never told.
"""

from __future__ import annotations

import hashlib
import re

#: Setting of the engine or of Docker that stands by itself in the command: the image, and the model for `vllm serve`.
_POSITIONS = ("image", "model")

#: What a change of an identity means that the plan does not show: the same name, another content.
_IDENTITIES = ("image_id", "model_manifest")

_SHOWN_DIGITS = 19  # "sha256:" and twelve digits, as Docker shows an id


def compare(before, after):
    """Returns {"changed", "restart", "reasons", "diff"}. Both are deployments; before is of nothing where none is."""
    reasons, restart = [], before["unit"] is None
    if restart:
        reasons.append("there is no unit yet (restart)")
    else:
        command = _differences(command_settings(before["unit"]), command_settings(after["unit"]), "restart")
        environment = _environment_reasons(before["environment"], after["environment"])
        identities = _identity_reasons(before, after)
        restart = bool(command or environment or identities)
        reasons += command + environment + identities + _harmless_reasons(before, after, restart)
    return {
        "changed": bool(reasons),
        "restart": restart,
        "reasons": reasons,
        "diff": {"before": _shown(before, before), "after": _shown(after, before)},
    }


def command_settings(unit):
    """{setting: value} of ExecStart, of which the unit has one option a line. "max_model_len" for --max-model-len."""
    found, positions = {}, iter(_POSITIONS)
    first, *options = _logical_lines(unit or "").get("ExecStart") or [""]
    found["program"] = first
    for option in options:
        word, _space, value = option.partition(" ")
        if word.startswith("-"):
            _add(found, *_named(word.lstrip("-").replace("-", "_"), _unquoted(value)))
        else:
            for position, word in zip(positions, option.split()):
                _add(found, position, _unquoted(word))
    return found


def unit_settings(unit):
    """{setting: value} of the unit beside what it runs to start: of that, the image's ID is told as such."""
    lines = _logical_lines(unit or "")
    return {key: " ".join(parts) for key, parts in lines.items() if key not in ("ExecStart", "ExecStartPre")}


def _logical_lines(unit):
    """{key: physical lines of its value}. Comments are left out; a key that comes again goes on."""
    found, key = {}, None
    for line in unit.splitlines():
        text = line.strip()
        if not text or text[0] in "#;[":
            continue
        if key is None:
            key, _equals, text = text.partition("=")
        goes_on = text.endswith("\\")
        found.setdefault(key, []).append(text.rstrip("\\").strip())
        key = key if goes_on else None
    return found


def _named(name, value):
    """Each variable of --env is a setting of its own."""
    if name == "env":
        variable, _equals, value = value.partition("=")
        return "env " + variable, value
    return name, value


def _add(found, name, value):
    found[name] = found[name] + ", " + value if name in found else value


def _unquoted(text):
    text = text.strip()
    return text[1:-1].replace('\\"', '"') if re.fullmatch(r'".*"', text) else text


# --- reasons ------------------------------------------------------------------------------------------------------


def _differences(before, after, consequence):
    sentences = []
    for name in list(before) + [name for name in after if name not in before]:
        if name not in after:
            sentences.append(f"{name} {before[name]}".rstrip() + f" is gone ({consequence})")
        elif name not in before:
            sentences.append(f"{name} {after[name]}".rstrip() + f" is new ({consequence})")
        elif before[name] != after[name]:
            sentences.append(f"{name} {before[name]} -> {after[name]} ({consequence})")
    return sentences


def _environment_reasons(before, after):
    names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    return [f"{_variable(name)} {_verb(name, before, after)} (restart)" for name in names]


def _variable(name):
    return "the API key" if name == "VLLM_API_KEY" else "environment variable " + name


def _verb(name, before, after):
    if name not in before:
        return "is new"
    return "changes" if name in after else "is gone"


def _identity_reasons(before, after):
    """An identity that one side does not know is no change."""
    pairs = [(name, before[name], after[name]) for name in _IDENTITIES]
    return [
        f"{name} {old[:_SHOWN_DIGITS]} -> {new[:_SHOWN_DIGITS]} (restart)"
        for name, old, new in pairs
        if old and new != old and new
    ]


def _harmless_reasons(before, after, restart):
    reasons = _differences(unit_settings(before["unit"]), unit_settings(after["unit"]), "no restart")
    if before["unit"] != after["unit"] and not reasons and not restart:
        reasons.append("the unit is written anew (no restart)")
    scripts = [name for name in ("smoke.sh", "archive.sh") if before[name] != after[name]]
    reasons += [f"{name} {'changes' if before[name] else 'is new'} (no restart)" for name in scripts]
    # The plan of another command is another plan: only what changes without it is worth a word.
    if before["plan"] != after["plan"] and not restart:
        keys = _changed_keys(before["plan"] or {}, after["plan"])
        reasons.append(f"{', '.join(keys)} {'changes' if len(keys) == 1 else 'change'} (no restart)")
    return reasons


def _changed_keys(before, after):
    return sorted(key for key in {**before, **after} if before.get(key) != after.get(key))


# --- the difference that Ansible shows ----------------------------------------------------------------------------


def _shown(deployment, before):
    """The deployment as lines "setting: value", for a difference line by line."""
    if deployment["unit"] is None:
        return ""
    lines = [f"{name}: {value}" for name, value in command_settings(deployment["unit"]).items()]
    for name, value in sorted(deployment["environment"].items()):
        same = before["environment"].get(name, value) == value
        lines.append(f"{_variable(name)}: {'set' if same else 'set to another value'}")
    lines += [f"{name}: {deployment[name]}" for name in _IDENTITIES if deployment[name]]
    lines += [f"unit {name}: {value}" for name, value in unit_settings(deployment["unit"]).items()]
    lines += [f"{name}: {_digest(deployment[name])}" for name in ("smoke.sh", "archive.sh") if deployment[name]]
    # What is deeper in the plan, such as the budget, follows from the lines above.
    plan = sorted((deployment["plan"] or {}).items())
    lines += [f"plan {key}: {value}" for key, value in plan if not isinstance(value, (dict, list))]
    return "\n".join(lines) + "\n"


def _digest(text):
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]

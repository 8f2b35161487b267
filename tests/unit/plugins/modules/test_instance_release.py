# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import copy
import json
import os
import stat
import sys
import time

import pytest
import yaml
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes

from ansible_collections.gpufleet.vllm.plugins.module_utils import _release
from ansible_collections.gpufleet.vllm.plugins.modules import instance_release

KEY = "secret-of-today"
UNIT = """# Ansible managed
[Unit]
Description=vLLM instance chat
StartLimitBurst=3

[Service]
ExecStartPre=-/usr/bin/docker rm --force vllm-chat
ExecStart=/usr/bin/docker run \\
    --name vllm-chat \\
    --env "A=1 2" \\
    vllm/vllm-openai:v0.32.0 /models/qwen \\
    --enforce-eager \\
    --max-model-len 8192
Restart=always
"""
PLAN = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "description": "for all", "budget": [{"total_gib": 80}]}


@contextlib.contextmanager
def module_arguments(arguments):
    """ansible-core 2.19 and newer have a function for it; before, a variable."""
    try:
        from ansible.module_utils.testing import patch_module_args
    except ImportError:
        basic._ANSIBLE_ARGS = to_bytes(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
        yield
        basic._ANSIBLE_ARGS = None
    else:
        with patch_module_args(arguments):
            yield


class Host:
    """A host whose / is a temporary folder."""

    def __init__(self, root, capsys):
        self.root, self.capsys = root, capsys
        self.instance = _release.Instance("chat", str(root))
        self.wanted = {
            "plan": copy.deepcopy(PLAN),
            "files": {"unit": UNIT, "smoke": "#!/bin/sh\n", "archive": "#!/bin/sh\n#\n", "rollback": "[Service]\n"},
            "environment": {"VLLM_API_KEY": KEY},
        }

    def call(self, fails=False, **arguments):
        """The result of the module."""
        arguments = {"name": "chat", "root": str(self.root), **arguments}
        with module_arguments(arguments), pytest.raises(SystemExit) as end:
            instance_release.main()
        result = json.loads(self.capsys.readouterr().out.splitlines()[-1])
        assert bool(end.value.code) == fails, result
        return {key: value for key, value in result.items() if key != "invocation"}

    def present(self, unit=None, key=None, check=False, **arguments):
        """Have the instance as wanted from now on."""
        self.wanted["files"]["unit"] = unit or self.wanted["files"]["unit"]
        self.wanted["environment"]["VLLM_API_KEY"] = key or self.wanted["environment"]["VLLM_API_KEY"]
        return self.call(**self.wanted, _ansible_check_mode=check, **arguments)

    def served(self, **arguments):
        return self.call(state="served", **arguments)

    def restored(self, **arguments):
        return self.call(state="restored", **arguments)

    def deploy(self, unit=None, key=None, **arguments):
        """Present and served."""
        result = self.present(unit, key, **arguments)
        self.served()
        return result

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def states(self):
        return {number: release["state"] for number, release in _release.read_releases(self.instance).items()}

    def current(self):
        return os.readlink(self.instance.current)

    def ledger(self):
        return [json.loads(line) for line in self.read("var/lib/vllm/chat/ledger.jsonl").splitlines()]

    def files(self):
        """Everything on the host, with modes and times."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            text = (
                os.readlink(path) if path.is_symlink() else path.read_text(encoding="utf-8") if path.is_file() else ""
            )
            found[str(path)] = (stat.S_IMODE(path.lstat().st_mode), text)
        return found


@pytest.fixture(name="host")
def make_host(tmp_path, capsys):
    return Host(tmp_path, capsys)


def longer(length, unit=UNIT):
    return unit.replace("--max-model-len 8192", f"--max-model-len {length}")


# --- present ------------------------------------------------------------------------------------------------------


def test_the_first_release_is_written_with_its_modes(host):
    result = host.present(why="a new host", image_id="sha256:1", cache_directory=str(host.root / "cache"))
    assert (result["changed"], result["restart"], result["daemon_reload"]) == (True, True, True)
    assert (result["release"], result["previous"], host.current()) == (1, None, "0001")
    assert result["reasons"] == ["there is no unit yet (restart)"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (host.root / "etc/vllm/chat").iterdir()}
    assert modes == {
        "plan.json": 0o644,
        "engine.env": 0o600,
        "smoke.sh": 0o700,
        "archive.sh": 0o700,
        "release.py": 0o700,
    }
    assert stat.S_IMODE((host.root / "cache").stat().st_mode) == 0o700
    assert host.read("etc/systemd/system/vllm-chat.service") == UNIT
    assert host.read("etc/systemd/system/vllm-rollback@.service") == "[Service]\n"
    assert json.loads(host.read("etc/vllm/chat/plan.json")) == PLAN
    release = json.loads(host.read("var/lib/vllm/chat/releases/0001/release.json"))
    assert (release["state"], release["why"], release["image_id"]) == ("deploying", "a new host", "sha256:1")
    kept = {path.name for path in (host.root / "var/lib/vllm/chat/releases/0001").iterdir()}
    assert kept == {"plan.json", "vllm-chat.service", "smoke.sh", "archive.sh", "release.json"}


def test_tools_on_the_host_run_in_the_python_of_the_module(host):
    host.wanted["files"]["rollback"] = "[Service]\nExecStart=/usr/bin/env python3 /etc/vllm/%i/release.py %i\n"
    waits = "ExecStartPre=/usr/bin/env python3 members.py\nExecStart="
    host.deploy(UNIT.replace("ExecStart=", waits, 1))
    assert f"ExecStart={sys.executable} /etc/vllm/%i" in host.read("etc/systemd/system/vllm-rollback@.service")
    assert f"ExecStartPre={sys.executable} members.py" in host.read("etc/systemd/system/vllm-chat.service")
    assert host.present()["changed"] is False


def test_no_change_is_no_release(host):
    host.deploy()
    before = host.files()
    result = host.present()
    assert (result["changed"], result["restart"], result["daemon_reload"]) == (False, False, False)
    assert (result["reasons"], result["release"]) == ([], 1)
    assert host.served()["changed"] is False
    assert host.files() == before


def test_check_mode_tells_the_same_and_writes_nothing(host):
    first = host.present(check=True, cache_directory=str(host.root / "cache"))
    assert (first["changed"], first["release"], list(host.root.iterdir())) == (True, 1, [])
    host.deploy()
    before = host.files()
    told = host.present(longer(16384), check=True)
    assert host.files() == before
    assert told == host.present(longer(16384))
    assert (told["release"], told["previous"]) == (2, 1)


@pytest.mark.parametrize(
    ("unit", "reason", "restart"),
    [
        (longer(16384), "max_model_len 8192 -> 16384 (restart)", True),
        (UNIT.replace("    --enforce-eager \\\n", ""), "enforce_eager is gone (restart)", True),
        (UNIT.replace("A=1 2", "A=3"), "env A 1 2 -> 3 (restart)", True),
        (UNIT.replace("    --env", '    --env "B=$$x" \\\n    --env'), "env B $$x is new (restart)", True),
        (
            UNIT.replace("v0.32.0", "v0.33.0"),
            "image vllm/vllm-openai:v0.32.0 -> vllm/vllm-openai:v0.33.0 (restart)",
            True,
        ),
        (UNIT.replace("/models/qwen", "/models/gemma"), "model /models/qwen -> /models/gemma (restart)", True),
        (UNIT.replace("StartLimitBurst=3", "StartLimitBurst=5"), "StartLimitBurst 3 -> 5 (no restart)", False),
        (UNIT.replace("# Ansible managed", "# Ansible"), "the unit is written anew (no restart)", False),
        (
            UNIT.replace("ExecStart=", "ExecStartPre=-/usr/bin/docker tag sha256:1 a:v1\nExecStart="),
            "the unit is written anew (no restart)",
            False,
        ),
    ],
)
def test_each_change_of_the_unit_is_named(host, unit, reason, restart):
    host.deploy()
    result = host.present(unit)
    assert result["reasons"] == [reason]
    assert (result["changed"], result["restart"], result["daemon_reload"]) == (True, restart, True)


def test_what_the_engine_does_not_see_does_not_restart_it(host):
    host.deploy()
    host.wanted["plan"]["description"] = "for some"
    host.wanted["files"]["smoke"] = "#!/bin/bash\n"
    result = host.present()
    assert result["reasons"] == ["smoke.sh changes (no restart)", "description changes (no restart)"]
    assert (result["changed"], result["restart"], result["daemon_reload"], result["release"]) == (True, False, False, 2)
    host.served()
    host.wanted["plan"]["budget"], host.wanted["plan"]["labels"] = [], {"team": "a"}
    assert host.present()["reasons"] == ["budget, labels change (no restart)"]


def test_the_key_is_in_no_release_and_in_no_output(host):
    host.deploy()
    host.wanted["environment"]["HF_TOKEN"] = "another-secret"
    result = host.present(key="secret-of-tomorrow")
    assert result["reasons"] == ["environment variable HF_TOKEN is new (restart)", "the API key changes (restart)"]
    assert result["restart"] is True
    assert "the API key: set to another value" in result["diff"]["after"]
    assert "secret" not in json.dumps(result)
    host.served()
    holding = [path.name for path in host.root.rglob("*") if path.is_file() and "secret" in path.read_text("utf-8")]
    assert holding == ["engine.env"]


def test_another_image_under_the_same_name_restarts(host):
    host.deploy(image_id="sha256:" + "a" * 64, model_manifest="sha256:1")
    result = host.present(image_id="sha256:" + "b" * 64, model_manifest="sha256:1")
    assert result["reasons"] == ["image_id sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb (restart)"]
    assert result["restart"] is True


def test_an_identity_that_was_not_known_is_no_change(host):
    host.deploy()
    assert host.present(image_id="sha256:1")["changed"] is False


def test_what_was_changed_by_hand_is_put_right(host):
    host.deploy()
    (host.root / "etc/vllm/chat/engine.env").chmod(0o644)
    (host.root / "etc/vllm/chat/release.py").write_text("", encoding="utf-8")
    result = host.present()
    assert result["reasons"] == ["release.py is set right (no restart)", "engine.env is set right (no restart)"]
    assert (result["changed"], result["restart"], result["release"]) == (True, False, 1)
    assert stat.S_IMODE((host.root / "etc/vllm/chat/engine.env").stat().st_mode) == 0o600
    (host.root / "etc/systemd/system/vllm-chat.service").write_text(longer(1), encoding="utf-8")
    assert host.present()["reasons"] == ["max_model_len 1 -> 8192 (restart)"]


def test_the_difference_is_one_line_a_setting(host):
    host.deploy()
    diff = host.present(longer(16384))["diff"]
    before, after = diff["before"].splitlines(), diff["after"].splitlines()
    assert [line for line in before if line not in after] == ["max_model_len: 8192"]
    assert [line for line in after if line not in before] == ["max_model_len: 16384"]
    assert "image: vllm/vllm-openai:v0.32.0" in after and "unit Restart: always" in after


def test_a_deployment_from_before_there_were_releases_is_adopted(host):
    for path, text in (
        ("etc/systemd/system/vllm-chat.service", UNIT),
        ("etc/vllm/chat/plan.json", json.dumps(PLAN)),
        ("etc/vllm/chat/smoke.sh", "#!/bin/sh\n"),
        ("etc/vllm/chat/engine.env", f"VLLM_API_KEY={KEY}\n"),
    ):
        (host.root / path).parent.mkdir(parents=True, exist_ok=True)
        (host.root / path).write_text(text, encoding="utf-8")
    told = host.present(longer(16384), check=True)
    result = host.present(longer(16384))
    assert (result["release"], result["previous"], host.states()) == (2, 1, {1: "served", 2: "deploying"})
    assert (told["release"], told["previous"]) == (2, 1)
    assert host.restored()["restored"] == 1
    assert host.read("etc/systemd/system/vllm-chat.service") == UNIT


@pytest.mark.parametrize("environment", [{"VLLM_API_KEY": "two\nlines"}, {"not a name": "x"}])
def test_an_environment_that_docker_cannot_read_is_refused(host, environment):
    host.wanted["environment"] = environment
    message = host.call(fails=True, **host.wanted)["msg"]
    assert "cannot be written to engine.env" in message
    assert list(host.root.iterdir()) == []


# --- served and restored ------------------------------------------------------------------------------------------


def test_what_served_is_in_the_ledger(host):
    host.deploy(why="first")
    host.deploy(longer(16384))
    rows = host.ledger()
    assert [(row["release"], row["outcome"], row["why"]) for row in rows] == [(1, "kept", "first"), (2, "kept", "")]
    assert rows[1]["change"] == ["max_model_len 8192 -> 16384 (restart)"]
    assert host.served()["changed"] is False
    assert len(host.ledger()) == 2


def test_a_failed_deployment_is_undone_with_its_key(host):
    host.deploy()
    host.present(longer(16384), key="secret-of-tomorrow")
    result = host.restored(why="out of memory")
    assert (result["changed"], result["restored"], result["restart"], result["plan"]) == (True, 1, True, PLAN)
    assert host.read("etc/systemd/system/vllm-chat.service") == UNIT
    assert host.read("etc/vllm/chat/engine.env") == f"VLLM_API_KEY={KEY}\n"
    assert not os.path.exists(host.instance.previous_environment)
    assert (host.states(), host.current()) == ({1: "restored", 2: "failed"}, "0001")
    assert (host.ledger()[-1]["release"], host.ledger()[-1]["outcome"]) == (2, "rolled back")
    again = host.restored()
    assert (again["changed"], again["restored"]) == (False, 1)
    host.served()
    assert (host.states()[1], len(host.ledger())) == ("served", 2)


def test_on_demand_the_key_of_today_stays(host):
    host.deploy()
    host.deploy(longer(16384), key="secret-of-tomorrow")
    assert host.restored(_ansible_check_mode=True)["restored"] == 1
    assert host.current() == "0002"
    assert host.restored(why="answers got worse")["restored"] == 1
    assert host.read("etc/vllm/chat/engine.env") == "VLLM_API_KEY=secret-of-tomorrow\n"
    assert host.states() == {1: "restored", 2: "served"}


def test_back_to_a_number_and_from_there_on(host):
    for length in (1, 2, 3):
        host.deploy(longer(length))
    assert host.restored(number=1)["restored"] == 1
    host.served()
    host.present(longer(4))
    assert host.restored()["restored"] == 1, "release 3 served, but was left"
    message = host.call(fails=True, state="restored", number=9)["msg"]
    assert "no release 9" in message and "1 (restored, " in message and "4 (failed, " in message


def test_it_tells_what_the_release_served_with_and_what_it_replaces(host):
    host.deploy(image_id="sha256:1", model_manifest="f1")
    host.deploy(longer(2), image_id="sha256:2", model_manifest="f2")
    told = host.restored()
    names = ("restored", "replaced", "image_id", "model_manifest")
    assert [told[name] for name in names] == [1, 2, "sha256:1", "f1"]
    # It does not serve: back again.
    told = host.restored(number=told["replaced"], why="its image is gone")
    assert [told[name] for name in names] == [2, 1, "sha256:2", "f2"]
    assert (host.states(), host.current()) == ({1: "failed", 2: "restored"}, "0002")


def test_with_nothing_to_go_back_to(host):
    host.present()
    result = host.restored(why="no such model")
    assert (result["changed"], result["restored"], result["restart"]) == (True, None, False)
    assert (host.states(), host.restored()["changed"]) == ({1: "failed"}, False)
    again = host.present()
    assert (again["changed"], again["restart"], again["release"], again["previous"]) == (True, True, 2, None)
    host.served()
    assert host.restored()["restored"] is None
    assert host.states() == {1: "failed", 2: "served"}, "what serves did not fail"


def test_old_releases_go_but_not_the_ones_that_are_needed(host):
    host.deploy(longer(1))
    for length in (2, 3, 4):
        host.present(longer(length))
        host.restored()
        host.served()
    host.present(longer(5))
    assert host.served(keep=2)["pruned"] == [2, 3]
    assert host.states() == {1: "served", 4: "failed", 5: "served"}


def test_served_without_a_release(host):
    assert "has no release" in host.call(fails=True, state="served")["msg"]


# --- cut off ------------------------------------------------------------------------------------------------------


def test_a_run_that_was_cut_off_starts_the_engine_when_it_is_run_again(host):
    host.deploy()
    host.present(longer(16384))
    result = host.present()
    assert (result["changed"], result["restart"], result["daemon_reload"], result["release"]) == (False, True, True, 2)
    assert result["reasons"] == ["release 2 was not proven yet (restart)"]


def test_a_harmless_change_that_was_cut_off_restarts_nothing(host):
    host.deploy()
    host.present(UNIT.replace("StartLimitBurst=3", "StartLimitBurst=5"))
    result = host.present()
    assert (result["changed"], result["restart"], result["daemon_reload"], result["release"]) == (False, False, True, 2)
    assert host.served()["changed"] is True
    assert host.states() == {1: "served", 2: "served"}


def shown(seconds_after, **changes):
    """What systemd shows of a unit that was started so long after the files were written, and the clocks then."""
    started = 1_000_000
    properties = {"ActiveState": "active", "SubState": "running", "NeedDaemonReload": "no"}
    properties["ExecMainStartTimestampMonotonic"] = str(started * 1_000_000)
    return {**properties, **changes}, (time.time(), started - seconds_after)


@pytest.mark.parametrize(
    ("seconds_after", "changes", "runs"),
    [
        (60, {}, True),
        (-60, {}, False),
        (60, {"ActiveState": "activating", "SubState": "auto-restart"}, False),
        (60, {"NeedDaemonReload": "yes"}, False),
        (60, {"ExecMainStartTimestampMonotonic": "0"}, False),
    ],
)
def test_an_engine_that_was_started_from_the_files_in_use_is_known(host, seconds_after, changes, runs):
    host.present()
    properties, now = shown(seconds_after, **changes)
    assert instance_release.started_after(properties, host.instance, now) is runs


def test_an_engine_that_runs_after_its_deployment_was_cut_off_is_not_interrupted(host):
    host.deploy()
    host.present(longer(16384))
    params = dict.fromkeys(("image_id", "model_manifest", "cache_directory"), None)
    params = {**host.wanted, **params, "why": ""}
    result = instance_release.present(host.instance, params, False, runs=True)
    assert (result["restart"], result["changed"], result["release"]) == (False, False, 2)
    # It is not proven yet: if it does not serve, it goes back.
    assert result["undo"] is True
    params["files"]["unit"] = longer(4096)
    assert instance_release.present(host.instance, params, False, runs=True)["restart"] is True


def test_a_run_that_was_cut_off_leaves_the_way_back_open(host):
    host.deploy()
    host.present(longer(16384), key="secret-of-tomorrow")
    result = host.present(longer(4096), key="secret-of-after")
    assert (result["release"], result["previous"]) == (3, 1)
    assert host.states() == {1: "served", 2: "failed", 3: "deploying"}
    host.restored()
    assert host.read("etc/vllm/chat/engine.env") == f"VLLM_API_KEY={KEY}\n"


class Cut(Exception):
    """The host loses power."""


def cut_at(monkeypatch, nth):
    """Lets the nth change of the file system, and all after it, not happen."""
    left = [nth]

    def wrap(function):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Cut
            return function(*arguments, **options)

        return wrapped

    for name in ("rename", "symlink", "unlink"):
        monkeypatch.setattr(_release.os, name, wrap(getattr(os, name)))
    return left


@pytest.mark.parametrize("nth", range(40))
def test_cut_off_anywhere_the_next_run_sets_it_right(host, nth):
    """A deployment is cut off at its nth step; the next run starts the engine if its files are new, and can undo it."""
    host.deploy()
    with pytest.MonkeyPatch.context() as monkeypatch:
        left = cut_at(monkeypatch, nth)
        with contextlib.suppress(Cut, SystemExit):
            host.wanted["files"]["unit"] = longer(16384)
            params = dict.fromkeys(("image_id", "model_manifest", "cache_directory"), None)
            params = {**host.wanted, **params, "environment": {"VLLM_API_KEY": "secret-of-tomorrow"}, "why": ""}
            instance_release.present(host.instance, params, False)
        ended = left[0] >= 0
    result = host.present(longer(16384), key="secret-of-tomorrow")
    assert result["restart"] is True
    assert json.loads(host.read("var/lib/vllm/chat/releases/current/release.json"))["state"] == "deploying"
    assert ended or nth < 39, "the range is too short"
    with pytest.MonkeyPatch.context() as monkeypatch:
        cut_at(monkeypatch, nth)
        with contextlib.suppress(Cut):
            _release.restore(host.instance)
    assert host.restored()["restored"] == 1
    assert host.read("etc/systemd/system/vllm-chat.service") == UNIT
    assert host.read("etc/vllm/chat/engine.env") == f"VLLM_API_KEY={KEY}\n"
    assert (host.current(), host.states()[1]) == ("0001", "restored")


def test_a_full_disk_leaves_what_serves_in_use(host, monkeypatch):
    host.deploy()
    before = host.files()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_release.os, "fsync", full)
    message = host.call(fails=True, **{**host.wanted, "environment": {"VLLM_API_KEY": "x-tomorrow"}})["msg"]
    monkeypatch.undo()
    assert "No space left on device" in message and "df -h" in message
    assert host.files() == before


# --- the host by itself -------------------------------------------------------------------------------------------


class Systemd:
    """Takes the commands that the program on the host runs."""

    def __init__(self, failed=True):
        self.failed, self.commands = failed, []

    def __call__(self, command):
        if command[1] == "is-failed":
            return 0 if self.failed else 1
        self.commands.append(command[1])
        return 0


def hold_lock(host):
    (host.root / "run/vllm").mkdir(parents=True)
    (host.root / "run/vllm/deploy.lock").write_text("{}", encoding="utf-8")


def test_the_host_goes_back_when_nobody_deploys(host):
    host.deploy()
    host.present(longer(16384), key="secret-of-tomorrow")
    systemd = Systemd()
    assert _release.main("chat", str(host.root), run=systemd) == 0
    assert systemd.commands == ["daemon-reload", "reset-failed", "start"]
    assert host.states() == {1: "restored", 2: "failed"}
    assert host.read("etc/vllm/chat/engine.env") == f"VLLM_API_KEY={KEY}\n"
    late = host.restored()
    assert (late["changed"], late["restored"]) == (False, 1), "a controller that comes later finds it done"


def test_a_controller_that_is_there_goes_back_itself(host):
    host.deploy()
    host.present(longer(16384))
    hold_lock(host)
    systemd = Systemd()
    assert _release.main("chat", str(host.root), run=systemd, sleep=lambda _seconds: host.restored()) == 0
    assert systemd.commands == []


def test_a_controller_that_is_gone_is_not_waited_for_for_ever(host):
    host.deploy()
    host.present(longer(16384))
    hold_lock(host)
    systemd = Systemd()
    assert _release.main("chat", str(host.root), grace=0.01, run=systemd, sleep=lambda _s: None) == 0
    assert systemd.commands[-1] == "start"


def test_the_host_leaves_what_served_or_runs_alone(host):
    host.deploy()
    systemd = Systemd()
    assert _release.main("chat", str(host.root), run=systemd) == 0
    host.present(longer(16384))
    systemd.failed = False
    assert _release.main("chat", str(host.root), run=systemd) == 0
    assert (systemd.commands, host.states()) == ([], {1: "served", 2: "deploying"})


def test_the_host_has_nothing_to_go_back_to(host, capsys):
    host.present()
    assert _release.main("chat", str(host.root), run=Systemd()) == 1
    assert "none served before" in capsys.readouterr().out


def test_the_program_on_the_host_runs_by_itself(host):
    host.deploy()
    namespace = {"__name__": "program"}
    exec(compile(host.read("etc/vllm/chat/release.py"), "release.py", "exec"), namespace)
    assert namespace["main"]("chat", str(host.root), run=Systemd()) == 0


# --- documentation ------------------------------------------------------------------------------------------------


def test_every_option_is_described():
    described = yaml.safe_load(instance_release.DOCUMENTATION)["options"]
    assert described.keys() == instance_release.ARGUMENT_SPEC.keys()
    assert described["files"]["suboptions"].keys() == instance_release.FILES.keys()


def test_every_return_value_is_described(host):
    described = yaml.safe_load(instance_release.RETURN).keys()
    returned = host.present().keys() | host.served().keys() | host.restored().keys()
    assert returned - {"changed", "diff", "warnings"} <= described
    assert described <= returned


def test_the_receipt_of_a_start_is_written_once_and_stays_without_a_new_one(host):
    host.present()
    first = {"measured": {"kv_tokens": 1000}}
    assert host.call(state="served", receipt=first)["changed"] is True
    assert host.call(state="served", receipt=first)["changed"] is False
    assert host.call(state="served")["changed"] is False
    assert json.loads((host.root / "var/lib/vllm/chat/receipt.json").read_text()) == first


def test_check_mode_writes_no_receipt(host):
    host.present()
    host.call(state="served")
    assert host.call(state="served", receipt={"measured": {}}, _ansible_check_mode=True)["changed"] is True
    assert not (host.root / "var/lib/vllm/chat/receipt.json").exists()


@pytest.mark.parametrize(("code", "restart"), [(0, True), (1, False)])
def test_a_unit_that_failed_is_started_anew(host, code, restart):
    class Module:
        params = {"state": "present", "root": "/"}

        def run_command(self, command):
            assert command[-1] == "vllm-chat.service"
            return code, "", ""

    result = instance_release.look_at_unit(Module(), host.instance, {"restart": False, "reasons": []})
    assert result["restart"] is restart
    assert bool(result["reasons"]) is restart

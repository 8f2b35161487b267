# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest
import yaml
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.vllm.plugins.action import deploy_lock
from ansible_collections.gpufleet.vllm.plugins.modules import deploy_lock as module


class Host:
    """A host with a lock file, and the runs that ask for it."""

    def __init__(self, path, monkeypatch):
        self.path, self.monkeypatch = path, monkeypatch
        self.printed, self.warnings, self.slept = [], [], []
        self.while_asleep = lambda: None

    def execute(self, module_args, check):
        owner = json.loads(json.dumps(module_args["owner"]))
        if module_args["state"] == "free":
            return module.free(str(self.path), owner, check)
        return module.hold(str(self.path), owner, module_args["take_over"], check)

    def run(self, check=False, **arguments):
        action = object.__new__(deploy_lock.ActionModule)
        action._task = types.SimpleNamespace(check_mode=check, args=arguments)
        action._display = types.SimpleNamespace(display=self.printed.append, warning=self.warnings.append)
        action._execute_module = lambda module_name, module_args, task_vars: self.execute(module_args, check)
        self.monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_args: {})
        defaults = {name: option.get("default") for name, option in deploy_lock._ARGUMENTS.items()}
        action.validate_argument_spec = lambda _spec: (None, {**defaults, **arguments})
        return action.run(task_vars={"inventory_hostname": "gpu1"})

    def holder(self):
        return module.read_holder(str(self.path))

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.while_asleep()


@pytest.fixture(name="host")
def make_host(tmp_path, monkeypatch):
    host = Host(tmp_path / "deploy.lock", monkeypatch)
    monkeypatch.setattr(deploy_lock.time, "sleep", host.sleep)
    return host


@pytest.fixture(name="another")
def another_run():
    """A run that goes on, on the same controller."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def hold_as(host, run):
    module.hold(str(host.path), run, None, False)


def test_held_again_by_the_same_run_and_freed(host):
    first, again = host.run(), host.run()
    assert (first["changed"], first["held"], first["taken_over"]) == (True, True, False)
    assert (again["changed"], again["held"]) == (False, True)
    holder = host.holder()
    assert (holder["pid"], holder["controller"]) == (os.getppid(), os.uname().nodename)
    assert holder["since"].endswith("Z") and holder["user"]
    assert host.run(state="free")["changed"] is True
    assert host.run(state="free")["changed"] is False
    assert host.holder() is None


def test_another_run_is_named_with_what_to_do(host, another):
    hold_as(host, deploy_lock.describe_run(another.pid))
    with pytest.raises(AnsibleActionFail) as failure:
        host.run()
    told = str(failure.value)
    assert told.startswith("gpu1: another deployment holds this host: ")
    assert f"process {another.pid}" in told and f"ps -fp {another.pid}" in told and host.holder()["since"] in told
    assert "-e vllm_break_lock=true" in told
    assert host.run(state="free")["changed"] is False, "the lock of another stays"
    assert host.holder()["pid"] == another.pid


def test_a_run_that_is_gone_loses_its_lock(host, another):
    hold_as(host, deploy_lock.describe_run(another.pid))
    another.kill()
    another.wait()
    told = host.run()
    assert (told["changed"], told["held"], told["taken_over"], told["holder"]["pid"]) == (True, True, True, another.pid)
    assert host.holder()["pid"] == os.getppid()
    assert "gpu1: took the lock of" in host.warnings[0] and "that run is gone" in host.warnings[0]


def test_a_later_process_of_the_same_id_is_not_the_run(host, another):
    hold_as(host, dict(deploy_lock.describe_run(another.pid), started="another-boot 1"))
    assert host.run()["taken_over"] is True


@pytest.mark.parametrize("elsewhere", [{"controller": "ctl2"}, {"pid_namespace": "pid:[1]"}])
def test_what_ran_elsewhere_may_go_on(host, elsewhere):
    hold_as(host, {**deploy_lock.describe_run(1), "started": "gone", **elsewhere})
    with pytest.raises(AnsibleActionFail, match="on .*: ps -fp 1"):
        host.run()
    assert host.run(break_lock=True)["taken_over"] is True
    assert "vllm_break_lock" in host.warnings[0]


@pytest.mark.parametrize("text", ["", "[]", '{"pid'])
def test_a_file_that_is_no_lock_is_only_broken_on_demand(host, text):
    host.path.write_text(text, encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="a lock file that names nobody"):
        host.run()
    assert host.run(break_lock=True)["held"] is True


def test_it_waits_for_the_other_run_to_end(host, another):
    hold_as(host, deploy_lock.describe_run(another.pid))
    host.while_asleep = host.path.unlink
    assert host.run(wait=60)["held"] is True
    assert len(host.slept) == 1
    assert host.printed[0].startswith("gpu1: waits for ") and host.printed[0].endswith("up to 60 s")


def test_check_mode_changes_nothing(host, another):
    assert host.run(check=True)["held"] is True
    assert host.holder() is None
    hold_as(host, deploy_lock.describe_run(another.pid))
    before = host.holder()
    with pytest.raises(AnsibleActionFail):
        host.run(check=True)
    assert host.run(check=True, break_lock=True)["taken_over"] is True
    assert host.holder() == before


def test_two_that_see_a_dead_run_do_not_both_get_its_lock(host, another):
    dead = dict(deploy_lock.describe_run(another.pid), started="gone")
    hold_as(host, dead)
    seen = host.holder()
    mine, other = deploy_lock.describe_run(os.getppid()), deploy_lock.describe_run(os.getpid())
    assert module.hold(str(host.path), mine, seen, False)["held"] is True
    assert module.hold(str(host.path), other, seen, False)["held"] is False


def test_start_of_a_process():
    assert deploy_lock.process_started(os.getpid()) == deploy_lock.process_started(os.getpid())
    assert deploy_lock.process_started(os.getpid()) != deploy_lock.process_started(1)
    assert deploy_lock.process_started(2**22 + 1) is None


def test_the_documentation_is_of_the_module_and_the_action():
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    for name, option in deploy_lock._ARGUMENTS.items():
        assert option.get("default") == documented[name].get("default")
    assert documented.keys() - deploy_lock._ARGUMENTS.keys() == {"owner", "take_over"}

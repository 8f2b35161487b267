# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin with the real module, which runs in this process as if it were on a host."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from unittest.mock import MagicMock

import pytest
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.action import checkpoint as plugin
from ansible_collections.gpufleet.vllm.plugins.action import checkpoint_source as source_plugin
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_hub as hubs
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_manifest as manifests
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import JobError
from ansible_collections.gpufleet.vllm.plugins.modules import checkpoint, checkpoint_source
from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _checkpoint_push as pushing

MODULES = {"gpufleet.vllm.checkpoint": checkpoint, "gpufleet.vllm.checkpoint_source": checkpoint_source}


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
    """Runs modules; ``steps`` has what the module checkpoint was asked for."""

    def __init__(self, tmp_path):
        self.tmp_path, self.steps, self.before = tmp_path, [], lambda arguments: None

    def execute(self, module_name, module_args, task_vars, check_mode=False):
        arguments = {name: value for name, value in module_args.items() if value is not None}
        if not arguments.get("job"):
            self.steps.append(arguments.get("step", "all"))
        self.before(arguments)
        told = io.StringIO()
        given = {**arguments, "_ansible_check_mode": check_mode}
        with module_arguments(given), contextlib.redirect_stdout(told), pytest.raises(SystemExit) as end:
            MODULES[module_name].main()
        return {**json.loads(told.getvalue()), "failed": end.value.code != 0}

    def run(self, action_plugin=plugin, check_mode=False, **arguments):
        task = MagicMock(async_val=False, check_mode=check_mode, diff=False, args=arguments, delegate_to=None)
        connection = MagicMock(transport="local")
        connection._shell.join_path = os.path.join
        action = action_plugin.ActionModule(task, connection, MagicMock(), MagicMock(), MagicMock(), None)
        action._display = MagicMock()
        action._make_tmp_path = lambda: str(self.tmp_path)
        action._fixup_perms2 = lambda paths: None
        action._transfer_file = shutil.copy
        action._execute_module = lambda **call: self.execute(**call, check_mode=check_mode)
        result = action.run(task_vars={"inventory_hostname": "gpu1"})
        return {**result, "printed": [call.args[0] for call in action._display.display.call_args_list]}


@pytest.fixture
def host(tmp_path, monkeypatch):
    for module in (checkpoint, checkpoint_source, manifests, hubs, plugin):
        monkeypatch.setattr(module, "state_folder", lambda name: str(tmp_path / "state" / name))
    monkeypatch.setattr(pushing, "PIECE_BYTES", 500)
    return Host(tmp_path)


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "source" / "tiny")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "tiny"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def on_controller(source):
    return {"path": str(source), "on": "controller"}


def test_the_controllers_files_arrive_in_pieces_and_only_once(host, source, target):
    done = host.run(path=str(target), source=on_controller(source))
    assert (done["changed"], contents(target)) == (True, contents(source))
    assert host.steps.count("append") > len(contents(source))
    assert any(": copying" in line for line in done["printed"])
    assert all(len(line) <= 100 and line.startswith("gpu1: checkpoint tiny: ") for line in done["printed"])
    host.steps.clear()
    again = host.run(path=str(target), source=on_controller(source))
    assert (again["changed"], host.steps) == (False, ["all"])


def test_check_mode_changes_nothing_on_either_side(host, source, target, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    told = host.run(path=str(target), source=on_controller(source), check_mode=True)
    assert (told["changed"], sorted(tmp_path.rglob("*"))) == (True, before)


def test_a_copy_that_was_interrupted_goes_on(host, source, target, monkeypatch):
    def break_off(arguments):
        if host.steps.count("append") == 3:
            raise ConnectionError("the network is gone")

    host.before = break_off
    with pytest.raises(ConnectionError):
        host.run(path=str(target), source=on_controller(source))
    host.before = lambda arguments: None
    sent = host.steps.count("append") - 1
    host.steps.clear()
    assert host.run(path=str(target), source=on_controller(source))["changed"] is True
    pieces = sum(-(-len(content) // 500) for content in contents(source).values())
    assert host.steps.count("append") == pieces - sent


def test_what_arrived_damaged_is_sent_again(host, source, target, monkeypatch):
    def damage(arguments):
        if arguments.get("step") == "finish" and not arguments.get("job") and host.steps.count("finish") == 1:
            (partial,) = target.parent.glob("tiny.partial-*")
            (partial / "config.json").write_bytes(b"X" * (source / "config.json").stat().st_size)

    host.before = damage
    assert host.run(path=str(target), source=on_controller(source))["changed"] is True
    assert (contents(target), host.steps.count("finish")) == (contents(source), 2)


def test_another_run_that_brings_the_same_is_followed(host, source, target, monkeypatch):
    monkeypatch.setattr(plugin, "_SECONDS_BEFORE_FOLLOWING", 0)
    other = Host(host.tmp_path / "other")
    other.tmp_path.mkdir()

    def overtake(arguments):
        if arguments.get("step") == "append" and host.steps.count("append") == 2:
            assert other.run(path=str(target), source=on_controller(source))["changed"] is True

    host.before = overtake
    told = host.run(path=str(target), source=on_controller(source))
    assert (told.get("changed"), contents(target)) == (False, contents(source)), told


def test_a_disk_that_becomes_full_is_told_with_what_to_look_at(host, source, target, monkeypatch):
    def full(path, wanted, **piece):
        raise JobError("The disk is full.", "df -h")

    monkeypatch.setattr(checkpoint.checkpoints, "append", full)
    told = host.run(path=str(target), source=on_controller(source))
    assert (told["failed"], told["msg"]) == (True, "gpu1: The disk is full. Next: df -h")


def test_a_description_needs_no_copy(host, source, target):
    told = host.run(path=str(target), source=on_controller(source), state="described")
    assert (told["checkpoint"]["complete"], told["checkpoint"]["path"], target.exists()) == (True, str(target), False)


def test_the_host_itself_by_its_name_is_the_host(host, source, target):
    told = host.run(path=str(target), source={"path": str(source), "on": "gpu1"})
    assert (told["changed"], contents(target)) == (True, contents(source))


def test_a_failure_names_host_cause_and_next_command(host, source, target):
    os.truncate(source / "model-00002-of-00002.safetensors", 100)
    for where in (on_controller(source), {"path": str(source)}):
        told = host.run(path=str(target), source=where)
        assert told["failed"] is True
        assert told["msg"].startswith("gpu1: ")
        assert "model-00002-of-00002.safetensors is damaged" in told["msg"]
        assert "Next: Copy or download" in told["msg"]


def test_the_hubs_token_does_not_go_to_the_host(host, source, target):
    seen = []
    host.before = lambda arguments: seen.append(arguments.get("hub_token"))
    host.run(path=str(target), source=on_controller(source), hub_token="hf_secret", hub_python="/usr/bin/python3")
    assert seen and set(seen) == {None}


def test_a_source_is_hashed_with_progress(host, source):
    told = host.run(source_plugin, source={"path": str(source)})
    assert len(told["manifest"]["digest"]) == 64
    assert all(line.startswith("gpu1: checkpoint tiny on gpu1: ") for line in told["printed"])
    os.truncate(source / "model-00002-of-00002.safetensors", 100)
    assert host.run(source_plugin, source={"path": str(source)})["msg"].startswith("gpu1: ")


def test_the_fact_tells_of_every_checkpoint_and_whether_it_is_new(host, source, target):
    first = host.run(path=str(target), source=on_controller(source))["ansible_facts"]["vllm_model_facts"][str(target)]
    assert first["changed"] is True and first["manifest_digest"]
    again = host.run(path=str(target), source=on_controller(source))["ansible_facts"]["vllm_model_facts"][str(target)]
    assert again == {**first, "changed": False}
    assert "ansible_facts" not in host.run(path=str(target), source=on_controller(source), state="described")

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import shutil
import types

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.action import image
from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _follow, _upload

NAME = "vllm/vllm-openai:v0.32.0"
FACTS = {"id": "sha256:1", "reference": NAME}


class Host:
    """A host that takes the parts of an archive, and answers everything else with the next of its answers."""

    def __init__(self, answers, folder):
        self.answers = list(answers)
        self.archive = b""
        self.asked = []
        self.folder = folder
        self.broken_transfers = 0
        self.damaged_parts = 0

    def execute_module(self, module_name, module_args, task_vars):
        self.asked.append(module_args)
        upload = module_args.get("upload")
        if upload is None:
            return self.answers.pop(0)
        if "part" in upload:
            with open(upload["part"], "rb") as stream:
                content = stream.read()
            if self.damaged_parts:
                self.damaged_parts -= 1
            elif upload["offset"] == len(self.archive):
                assert upload["sha256"] == hashlib.sha256(content).hexdigest()
                self.archive += content
        return {"changed": True, "received": len(self.archive)}

    def transfer_file(self, local, remote):
        if self.broken_transfers:
            self.broken_transfers -= 1
            raise AnsibleConnectionFailure("broken pipe")
        shutil.copy(local, remote)


@pytest.fixture(name="run")
def run_action(monkeypatch, tmp_path):
    """A function that runs the action and returns its result, the host, and what was printed."""
    monkeypatch.setattr(image.ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(_follow.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(_upload, "PART_BYTES", 4)
    monkeypatch.setattr(_upload.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))

    def run(*answers, variables=None, prepare=None, **arguments):
        host, printed = Host(answers, tmp_path), []
        (prepare or (lambda host: None))(host)
        action = image.ActionModule.__new__(image.ActionModule)
        action._task = types.SimpleNamespace(args={"name": NAME, **arguments})
        shell = types.SimpleNamespace(tmpdir=str(tmp_path), join_path=lambda *parts: "/".join(parts))
        action._connection = types.SimpleNamespace(_shell=shell, reset=lambda: printed.append("reconnected"))
        for name, function in {
            "_display": types.SimpleNamespace(display=printed.append),
            "_execute_module": host.execute_module,
            "_transfer_file": host.transfer_file,
            "_fixup_perms2": lambda paths: None,
        }.items():
            monkeypatch.setattr(action, name, function, raising=False)
        told = action.run(task_vars={"inventory_hostname": "gpu1", **(variables or {})})
        return told, host, printed

    return run


def test_the_fact_has_every_image_of_the_run(run):
    variables = {"ansible_facts": {"vllm_image_facts": {"other:1": {"id": "sha256:2"}}}}
    told, host, printed = run({"changed": False, "image": FACTS}, variables=variables, keep=["kept:1"])
    assert told["ansible_facts"] == {"vllm_image_facts": {"other:1": {"id": "sha256:2"}, NAME: FACTS}}
    assert printed == []
    # What another instance of the host was given a moment ago is not pruned.
    assert host.asked[0]["keep"] == ["kept:1", "other:1"]


def test_a_pull_is_followed_and_its_difference_is_that_of_the_beginning(run):
    running = {"changed": True, "diff": {"before": "", "after": "new"}, "image": None}
    running["job"] = {"id": "c0ffee", "state": "running", "progress": {"phase": "downloading", "done_bytes": 1 << 30}}
    ended = {"changed": True, "diff": {"before": "new", "after": "new"}, "image": FACTS}
    told, host, printed = run(running, ended)
    assert printed == [f"gpu1: image {NAME}: downloading, 1.0 GiB"]
    assert told["diff"] == {"before": "", "after": "new"}
    assert host.asked[1]["job"] == "c0ffee"


def test_a_digest_takes_no_room_from_the_figures(run):
    running = {"changed": True, "job": {"id": "1", "state": "running", "progress": {"phase": "downloading"}}}
    _told, _host, printed = run(running, {"image": FACTS}, name=f"{NAME}@sha256:{'0' * 64}")
    assert printed == [f"gpu1: image {NAME}: downloading"]


def test_a_failure_names_the_host_the_next_command_and_the_class(run):
    failure = {"failed": True, "msg": "Pulling a failed. Docker says: no space left on device.", "next": "df -h"}
    told, _host, _printed = run(failure)
    assert told["msg"] == "gpu1: Pulling a failed. Docker says: no space left on device. Next: df -h"
    assert told["findings"][0]["class"] == "disk_full"


def test_an_archive_of_this_very_host_is_read_there(run):
    _told, host, _printed = run({"image": FACTS}, source={"archive": "/srv/a.tar", "on": "gpu1"})
    assert host.asked[0]["source"] == {"archive": "/srv/a.tar", "on": "host"}


@pytest.fixture(name="source")
def controllers_archive(tmp_path):
    (tmp_path / "image.tar").write_bytes(b"0123456789")
    return {"archive": str(tmp_path / "image.tar"), "on": "controller"}


MISSING = {"changed": False, "transfer": "controller", "image": None}


def test_an_archive_on_the_controller_is_brought_in_parts(run, source):
    told, host, printed = run(MISSING, {"changed": True, "image": FACTS}, source=source)
    assert host.archive == b"0123456789"
    assert told["changed"] and host.asked[-1]["uploaded"] == host.asked[1]["upload"]["key"]
    assert printed[0] == f"gpu1: image {NAME}: copying from the controller, 0 %, 0.0 MiB of 0.0 MiB"


def test_a_copy_that_broke_off_goes_on(run, source):
    def prepare(host):
        host.archive, host.broken_transfers, host.damaged_parts = b"0123", 2, 2

    _told, host, printed = run(MISSING, {"changed": True, "image": FACTS}, source=source, prepare=prepare)
    assert host.archive == b"0123456789"
    assert printed.count("reconnected") == 2
    assert printed[0].endswith("40 %, 0.0 MiB of 0.0 MiB")


def test_a_copy_that_breaks_off_again_and_again_is_given_up(run, source):
    def broken(host):
        host.broken_transfers = 99

    with pytest.raises(AnsibleConnectionFailure):
        run(MISSING, source=source, prepare=broken)

    def damaged(host):
        host.damaged_parts = 99

    told, _host, _printed = run(MISSING, source=source, prepare=damaged)
    assert told["failed"] and "arrive damaged" in told["msg"]


def test_an_archive_that_is_not_on_the_controller_is_named(run):
    told, _host, _printed = run(MISSING, source={"archive": "/none/image.tar", "on": "controller"})
    assert told["msg"].startswith("gpu1: there is no archive /none/image.tar on the controller. Next: correct")


def test_another_archive_is_another_upload(tmp_path):
    path = tmp_path / "image.tar"
    path.write_bytes(b"0")
    first = _upload.key(path)
    assert _upload.key(path) == first
    path.write_bytes(b"01")
    assert _upload.key(path) != first

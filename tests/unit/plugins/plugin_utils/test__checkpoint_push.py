# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ways from the controller to a host, without a host: the role's integration test has one."""

from __future__ import annotations

import shlex
import stat
from types import SimpleNamespace

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _checkpoint_push as pushing


class Connection:
    transport = "ssh"

    def __init__(self, become=None, **options):
        self.become = become
        self.options = {"host_key_checking": True, **options}

    def get_option(self, name):
        return self.options.get(name)


def action(connection, has_rsync=True):
    def run(command):
        return {"rc": 0 if has_rsync else 127}

    return SimpleNamespace(_connection=connection, _low_level_execute_command=run)


@pytest.fixture
def rsync(tmp_path, monkeypatch):
    """Puts a script in rsync's place."""

    def install(text):
        script = tmp_path / "bin" / "rsync"
        script.parent.mkdir(exist_ok=True)
        script.write_text("#!/bin/sh\n" + text)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")

    install("exit 0")
    return install


def test_the_way_is_that_of_ansibles_connection(rsync):
    connection = Connection(
        port=2222, remote_user="admin", private_key_file="/k/id", ssh_args="-C -o ControlMaster=auto",
        ssh_common_args="-o ProxyJump=bastion -o 'UserKnownHostsFile=/a b'",
    )  # fmt: skip
    command = pushing.rsync_command(action(connection))
    way = next(word for word in command if word.startswith("--rsh=")).partition("=")[2]
    words = shlex.split(way)
    assert words[:3] == ["ssh", "-o", "Compression=no"]  # before -C: ssh takes the first that it is told
    assert [words[words.index(flag) + 1] for flag in ("-p", "-i", "-l")] == ["2222", "/k/id", "admin"]
    assert "UserKnownHostsFile=/a b" in words and "ProxyJump=bastion" in words
    assert "StrictHostKeyChecking=no" not in words
    assert "--rsync-path=rsync" in command


def test_it_becomes_who_the_play_becomes(rsync):
    sudo = SimpleNamespace(name="ansible.builtin.sudo", get_option={"become_user": "root"}.get)
    assert "--rsync-path=sudo -n -u root rsync" in pushing.rsync_command(action(Connection(sudo)))


@pytest.mark.parametrize(
    "connection",
    [
        Connection(password="x"),
        Connection(SimpleNamespace(name="su", get_option={}.get)),
        Connection(SimpleNamespace(name="sudo", get_option={"become_pass": "x"}.get)),
    ],
)
def test_where_rsync_could_not_log_in_it_is_not_used(rsync, connection):
    assert pushing.rsync_command(action(connection)) is None


def test_where_one_side_has_no_rsync_it_is_not_used(rsync, monkeypatch):
    assert pushing.rsync_command(action(Connection(), has_rsync=False)) is None
    monkeypatch.setenv("PATH", "/nonexistent")
    assert pushing.rsync_command(action(Connection())) is None


def test_progress_of_rsync_is_that_of_the_whole_copy(rsync):
    rsync(
        "cat > /dev/null; echo '      1,048,576  50%  100.00MB/s    0:00:01'; echo '      2,000,000 100%   90.00MB/s'"
    )
    told = []
    missing = [{"path": "a", "size": 3_000_000, "have_bytes": 1_000_000}]
    pushing.push_by_rsync(["rsync"], "gpu1", "/from", "/to", missing, told.append)
    assert [entry["done_bytes"] for entry in told] == [2_048_576, 3_000_000]
    assert told[-1]["total_bytes"] == 3_000_000


@pytest.mark.parametrize(
    ("text", "full"),
    [("write failed: No space left on device (28)", True), ("ssh: connect to host gpu1: Connection refused", False)],
)
def test_why_rsync_failed_is_told(rsync, text, full):
    rsync(f"cat > /dev/null; echo '{text}' >&2; exit 11")
    with pytest.raises(pushing.PushError) as error:
        pushing.push_by_rsync(["rsync"], "gpu1", "/from", "/to", [], lambda told: None)
    assert (text in str(error.value), error.value.full) == (True, full)


def test_pieces_begin_where_the_host_is(tmp_path, monkeypatch):
    monkeypatch.setattr(pushing, "PIECE_BYTES", 4)
    (tmp_path / "shard").write_bytes(b"0123456789")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "whole").write_bytes(b"xx")
    missing = [
        {"path": "shard", "size": 10, "have_bytes": 3},
        {"path": "empty", "size": 0, "have_bytes": 0},
        {"path": "whole", "size": 2, "have_bytes": 2},
    ]
    found = [(entry["path"], offset, piece) for entry, offset, piece in pushing.pieces(str(tmp_path), missing)]
    assert found == [("shard", 3, b"3456"), ("shard", 7, b"789"), ("empty", 0, b"")]


def test_a_file_that_became_shorter_is_told(tmp_path):
    (tmp_path / "shard").write_bytes(b"01")
    with pytest.raises(pushing.PushError, match="became shorter"):
        list(pushing.pieces(str(tmp_path), [{"path": "shard", "size": 10, "have_bytes": 0}]))

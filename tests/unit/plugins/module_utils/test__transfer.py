# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two ends of a copy on one machine: the server is the real process, the network is loopback."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _transfer as transfer

SIZE = 9 * 1024 * 1024 + 17


@pytest.fixture
def files(tmp_path):
    (tmp_path / "source").mkdir()
    found = {}
    for name in ("model-1.safetensors", "sub folder/config.json"):
        path = tmp_path / "source" / name.replace("/", "_")
        path.write_bytes(os.urandom(SIZE if name.startswith("model") else 100))
        found[name] = str(path)
    return found


@pytest.fixture
def offer(files):
    made = transfer.serve(files, ["127.0.0.1"])
    yield made
    transfer.withdraw(made)


def entries(files):
    return [{"path": name, "size": os.path.getsize(path)} for name, path in files.items()]


def ask(url, token=None, method="GET"):
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def has_ended(pid):
    for _attempt in range(50):
        try:
            with open(f"/proc/{pid}/stat") as handle:
                if handle.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_files_arrive_as_they_are(files, offer, tmp_path):
    got = []
    transfer.fetch(offer, entries(files), str(tmp_path / "copy"), got.append)
    for name, path in files.items():
        with open(path, "rb") as handle:
            assert (tmp_path / "copy" / name).read_bytes() == handle.read()
    assert sum(got) == SIZE + 100


def test_only_what_is_missing_is_asked_for(files, offer, tmp_path):
    name = "model-1.safetensors"
    with open(files[name], "rb") as handle:
        content = handle.read()
    target = tmp_path / "copy" / name
    target.parent.mkdir()
    target.write_bytes(content[: SIZE - 1000])
    got = []
    transfer.fetch(offer, [{"path": name, "size": SIZE}], str(tmp_path / "copy"), got.append)
    assert (sum(got), target.read_bytes() == content) == (1000, True)


def test_a_file_that_is_too_long_is_cut(files, offer, tmp_path):
    target = tmp_path / "sub folder" / "config.json"
    target.parent.mkdir()
    with open(files["sub folder/config.json"], "rb") as handle:
        content = handle.read()
    target.write_bytes(content + b"more")
    transfer.fetch(offer, [{"path": "sub folder/config.json", "size": 100}], str(tmp_path))
    assert target.read_bytes() == content


def test_nothing_without_the_token_and_nothing_but_the_files(files, offer):
    url = offer["urls"][0]
    assert ask(url + "model-1.safetensors") == 401
    assert ask(url + "model-1.safetensors", "wrong") == 401
    assert ask(url, "wrong", "DELETE") == 401
    assert ask(url + "model-1.safetensors", offer["token"]) == 206
    assert ask(url + "../../etc/passwd", offer["token"]) == 404
    assert ask(url + "etc/passwd", offer["token"]) == 404


def test_it_listens_on_the_named_address_only(offer):
    port = int(offer["urls"][0].rsplit(":", 1)[1].rstrip("/"))
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.2", port))


def test_it_ends_when_the_copy_is_done(files):
    offer = transfer.serve(files, ["127.0.0.1"])
    transfer.withdraw(offer)
    assert has_ended(offer["pid"])


def test_it_ends_by_itself(files):
    assert has_ended(transfer.serve(files, ["127.0.0.1"], idle_seconds=0.2)["pid"])


def test_a_source_that_died_in_the_middle_is_told_and_the_copy_goes_on_later(files, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(transfer, "CHUNK", 1024 * 1024)
    first = transfer.serve(files, ["127.0.0.1"])

    seen = []

    def die_after_two(size):
        seen.append(size)
        if len(seen) == 2:
            os.kill(first["pid"], 9)

    with pytest.raises(transfer.TransferError, match=r"model-1.safetensors broke off at \d+ of .* again"):
        transfer.fetch(first, [{"path": "model-1.safetensors", "size": SIZE}], str(tmp_path / "copy"), die_after_two)
    kept = (tmp_path / "copy" / "model-1.safetensors").stat().st_size
    assert 2 * 1024 * 1024 <= kept < SIZE
    second, got = transfer.serve(files, ["127.0.0.1"]), []
    transfer.fetch(second, [{"path": "model-1.safetensors", "size": SIZE}], str(tmp_path / "copy"), got.append)
    transfer.withdraw(second)
    assert sum(got) == SIZE - kept
    with open(files["model-1.safetensors"], "rb") as handle:
        assert (tmp_path / "copy" / "model-1.safetensors").read_bytes() == handle.read()


@pytest.mark.parametrize(
    ("change", "message"),
    [(os.unlink, "not there any more"), (lambda path: os.truncate(path, 10), "shorter than it was|broke off")],
)
def test_a_file_that_changed_at_the_source_is_told(files, offer, tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: None)
    change(files["model-1.safetensors"])
    with pytest.raises(transfer.TransferError, match=message):
        transfer.fetch(offer, [{"path": "model-1.safetensors", "size": SIZE}], str(tmp_path / "copy"))


def test_who_cannot_be_reached_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(transfer.TransferError, match=rf"cannot be reached from here: {url} \(.*refused"):
            transfer.fetch({"urls": [url], "token": "x"}, [], str(tmp_path))


def test_an_address_that_is_not_ones_own_is_no_address_to_listen_on(files):
    with pytest.raises(transfer.TransferError, match="192.0.2.1"):
        transfer.serve(files, ["192.0.2.1"])


def test_addresses_of_containers_are_not_those_of_the_host():
    told = """\
2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0
2: eth0    inet6 2001:db8::5/64 scope global
3: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
4: br-0a1b2c    inet 172.18.0.1/16 scope global br-0a1b2c
9: ib0    inet 192.168.100.5/24 scope global ib0
"""
    assert transfer._parse_addresses(told) == ["10.0.0.5", "2001:db8::5", "192.168.100.5"]


def test_the_own_address_follows_from_the_others():
    assert transfer.addresses_towards(["127.0.0.1"]) == ["127.0.0.1"]
    assert transfer.addresses_towards(["no such name."]) == []

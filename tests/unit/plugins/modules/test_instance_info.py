# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _release
from ansible_collections.gpufleet.vllm.plugins.modules.instance_info import instance_info, others, releases


@pytest.fixture(name="ask")
def folder(tmp_path):
    """Calls the module on files of a temporary folder: ask({"chat/plan.json": text}, names)."""

    def ask(files, names):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(text)
        warnings = []
        patterns = {"plans": f"{tmp_path}/{{name}}/plan.json", "receipts": f"{tmp_path}/{{name}}/receipt.json"}
        return instance_info(names, patterns, warnings.append), warnings

    return ask


def test_plans_and_receipts_are_read_by_name(ask):
    files = {"chat/plan.json": b'{"verdict": "fits"}', "chat/receipt.json": b'{"release": "0.32.0"}'}
    found, warnings = ask(files, ["chat", "new"])
    assert found == {"plans": {"chat": {"verdict": "fits"}}, "receipts": {"chat": {"release": "0.32.0"}}}
    assert warnings == []


@pytest.mark.parametrize("text", [b"", b'{"verdict": "fi', b"[1]", b"null", b"\xff\xfe"])
def test_a_broken_file_is_left_out_with_a_warning(ask, text):
    found, warnings = ask({"chat/plan.json": text, "chat/receipt.json": b"{}"}, ["chat"])
    assert found == {"plans": {}, "receipts": {"chat": {}}}
    assert len(warnings) == 1
    assert "chat/plan.json is not used" in warnings[0]


def test_instances_that_are_not_asked_for_are_named(tmp_path):
    for name in ("chat", "old", "half"):
        instance = _release.Instance(name, str(tmp_path))
        for file in ("plan.json", instance.unit)[: 1 if name == "half" else 2]:
            _release.write(instance.files[file][0], "{}", 0o644)
    assert others(["chat"], str(tmp_path)) == ["old"]
    assert others(["chat"], str(tmp_path / "empty")) == []


def test_a_folder_in_place_of_the_file_is_left_out(ask, tmp_path):
    (tmp_path / "chat" / "plan.json").mkdir(parents=True)
    found, warnings = ask({}, ["chat"])
    assert (found["plans"], len(warnings)) == ({}, 1)


def test_the_releases_are_told_oldest_first(tmp_path):
    chat = _release.Instance("chat", str(tmp_path))
    record = {"image": "v1", "image_id": None, "model_manifest": None, "restart": True, "reasons": [], "why": "new"}
    first = _release.begin(chat, None, {"plan.json": "{}"}, "", record)
    _release.serve(chat, keep=10)
    _release.begin(chat, _release.current_release(chat), {"plan.json": "{}"}, "", {**record, "image": "v2"})
    _release.restore(chat, why="out of memory")
    (tmp_path / "var/lib/vllm/chat/releases/0003").mkdir()
    found = releases(["chat", "new"], str(tmp_path))
    assert found.keys() == {"chat"}
    assert [(release["number"], release["state"], release["current"]) for release in found["chat"]] == [
        (1, "restored", True),
        (2, "failed", False),
    ]
    assert (found["chat"][0]["made"], found["chat"][0]["why"]) == (first["made"], "new")
    assert (found["chat"][1]["image"], found["chat"][1]["failure"]) == ("v2", "out of memory")

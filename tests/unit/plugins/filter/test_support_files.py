# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import tarfile

from ansible_collections.gpufleet.vllm.plugins.filter.support_files import support_files
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.bundle import bundle_files, write_bundle

SECRET = "planted0123456789"
# In two pieces: a path of a user must not stand in this repository.
MODELS = "/" + "home/alice/models"
HOSTS = {
    "gpu01": {
        "__vllm_diagnose_gpu_info": {"gpus": [], "invocation": {"module_args": {}}},
        "_vllm_diagnoses": [],
        "vllm_api_key": SECRET,
        "__vllm_evidence": {
            "results": [
                {
                    "name": "chat",
                    "unit": {"name": "vllm-chat.service"},
                    "phase": "failed",
                    "container": None,
                    "request": None,
                    "errors": [],
                    "log": f"INFO args: Namespace(api_key='{SECRET}') {MODELS} https://bob:{SECRET}@host/x",
                    "samples": [{"seconds": 0.0, "metrics": None, "healthy": False}],
                    "failures": [
                        {
                            "number": "0007",
                            "files": {
                                "log": f"Authorization: Bearer {SECRET} hf_abcdefghijABCDEFGHIJ12",
                                "failure.json": "{}",
                            },
                        }
                    ],
                    "files": {"plan.json": "{}"},
                    "host": {"df.txt": "full"},
                }
            ]
        },
    }
}


def test_the_bundle_has_a_folder_for_each_host_and_instance():
    assert sorted(support_files(HOSTS)) == [
        "gpu01/chat/df.txt",
        "gpu01/chat/failures/0007/failure.json",
        "gpu01/chat/failures/0007/log",
        "gpu01/chat/log",
        "gpu01/chat/metrics-1.txt",
        "gpu01/chat/plan.json",
        "gpu01/chat/unit.json",
        "gpu01/diagnoses.json",
        "gpu01/gpu_info.json",
    ]


def test_other_variables_of_a_host_stay_out():
    assert SECRET not in json.dumps(support_files({"gpu01": {**HOSTS["gpu01"], "__vllm_evidence": {"results": []}}}))


def test_no_planted_secret_is_in_the_bundle(tmp_path):
    path = tmp_path / "vllm-support.tar.gz"
    write_bundle(path, bundle_files(support_files(HOSTS), [SECRET]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive.getmembers()}
    assert "vllm-support/README" in texts
    for name, text in texts.items():
        for secret in (SECRET, "alice", "bob:", "hf_abc"):
            assert secret not in text, name
    assert "gpu01/chat/log" in texts["vllm-support/README"]


def test_a_path_cannot_leave_the_archive():
    assert set(bundle_files({"/etc/x": "a", "../../y": "b"})) == {"README", "etc/x", "y"}


def test_data_becomes_json_without_secrets():
    text = bundle_files({"x.json": {"api_key": SECRET, "port": 8000}})["x.json"]
    assert json.loads(text)["port"] == 8000
    assert SECRET not in text


def test_names_of_files_have_no_secrets_and_stay_apart():
    home = "/" + "home"
    files = bundle_files(
        {f"gpu01/{SECRET}/log": "a", f"gpu01/x{SECRET}/log": "b", f"{home}/alice/hf_{'a1' * 10}": "c"}, [SECRET]
    )
    assert sorted(files) == ["README", "gpu01/***/log", "gpu01/x***/log", "home/***/***"]
    assert sorted(bundle_files({f"hf_{'a1' * 10}": "a", f"hf_{'b2' * 10}": "b"})) == ["***", "***.2", "README"]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes

from ansible_collections.gpufleet.vllm.plugins.module_utils import _gpu_query
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_nvml_binding import Nvml
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_problems import problem
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host
from ansible_collections.gpufleet.vllm.plugins.modules import gpu_info

REPOSITORY = Path(__file__).resolve().parents[4]
DRIVER = REPOSITORY / "roles" / "lab" / "files" / "driver"
PROFILES = sorted(path.stem for path in (DRIVER / "profiles").glob("*.json"))


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


def run_module(capsys, **arguments):
    """(exit code, result) of the module."""
    with module_arguments(arguments), pytest.raises(SystemExit) as end:
        gpu_info.main()
    return end.value.code, json.loads(capsys.readouterr().out)


@pytest.fixture(name="broken_host")
def make_broken_host(monkeypatch):
    """A host with a GPU on a unified memory machine and one that is lost."""
    host = new_host("nvml")
    host["gpus"] = [
        dict(new_gpu(0), name="NVIDIA GB10", memory_total_mib=None),
        dict(new_gpu(1), name="NVIDIA L40S", state="gpu_lost", pci_bus_id="00000000:41:00.0"),
    ]
    monkeypatch.setattr(_gpu_query, "query", lambda source, timeout, topology: (host, []))


@pytest.fixture(name="warnings")
def collect_warnings(monkeypatch):
    """What the module warns of. ansible-core >= 2.19 leaves it out of the result in a process that has imported code
    of the controller, as tests of plugins do; and the result holds the warnings of earlier modules, too."""
    told = []
    monkeypatch.setattr(basic.AnsibleModule, "warn", lambda _module, warning, **_more: told.append(warning))
    return told


def test_errors_do_not_fail_the_module(capsys, broken_host, warnings):
    code, result = run_module(capsys, gather_subset=[])
    assert (code, result["changed"]) == (0, False)
    assert [error["code"] for error in result["errors"]] == ["gpu_lost"]
    assert result["gpus"][0]["memory_source"] == "host"
    assert any("CPU and GPU share one memory" in warning for warning in warnings)
    assert "ansible_facts" not in result and "container_runtime" not in result and "host" not in result


def test_fail_on_error_tells_what_to_do_and_keeps_the_facts(capsys, broken_host):
    code, result = run_module(capsys, gather_subset=[], fail_on_error=True)
    assert code == 1
    assert "GPU 1: The GPU has fallen off the bus: 00000000:41:00.0. Run 'dmesg" in result["msg"]
    assert len(result["gpus"]) == 2


def test_facts_on_request_and_check_mode(capsys, broken_host):
    plain = run_module(capsys, gather_subset=["host"], path="/nonexistent/models")[1]
    code, result = run_module(
        capsys, gather_subset=["host"], path="/nonexistent/models", as_facts=True, _ansible_check_mode=True
    )
    assert code == 0
    facts = result["ansible_facts"]["gpufleet_gpu_info"]
    assert facts["disk"]["exists"] is False and facts["disk"]["mount_point"] == "/"
    assert facts["host"].keys() == plain["host"].keys()
    assert facts["errors"] == plain["errors"] == result["errors"]


def test_no_gpu_at_all(capsys, monkeypatch):
    failure = problem("insufficient_permissions")
    monkeypatch.setattr(_gpu_query, "query", lambda source, timeout, topology: (new_host("nvml"), [failure]))
    code, result = run_module(capsys)
    assert (code, result["gpus"], result["errors"]) == (0, [], [failure])
    assert "docker_error" in result["container_runtime"]


def test_every_return_value_is_described():
    described = yaml.safe_load(gpu_info.RETURN)
    on_condition = {"pci_gpus", "container_runtime", "host", "disk", "fabric_manager"}
    assert described.keys() == new_host("nvml").keys() | on_condition
    assert described["gpus"]["contains"].keys() == new_gpu(0).keys()
    assert yaml.safe_load(gpu_info.DOCUMENTATION)["options"].keys() == gpu_info.ARGUMENT_SPEC.keys()


# --- both paths against the simulated driver of the lab -----------------------------------------------------------


@pytest.fixture(name="driver", scope="module")
def build_driver(tmp_path_factory):
    """Root of a file system with the simulated driver."""
    if not shutil.which("make") or not shutil.which("gcc"):
        print("skipped: make and gcc are needed to build the simulated driver")
        pytest.skip("make and gcc are needed to build the simulated driver")
    root = tmp_path_factory.mktemp("driver")
    command = ["make", "-s", "-C", str(DRIVER), f"BUILD={root}/build", f"DESTDIR={root}", "install"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return root


@pytest.fixture(name="profile")
def use_profile(driver, monkeypatch):
    """Makes this machine the host of a profile."""
    library = str(next(driver.glob("usr/lib*/**/libnvidia-ml.so.1")))
    monkeypatch.setattr(_gpu_query, "_nvml_module", lambda: Nvml((library,)))
    monkeypatch.setenv("PATH", f"{driver}/usr/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GPUFLEET_DRIVER_LIBRARY", str(driver / "usr/lib/gpufleet-driver"))

    def use(name):
        monkeypatch.setenv("GPUFLEET_DRIVER_PROFILE", str(driver / f"usr/share/gpufleet-driver/profiles/{name}.json"))

    return use


def facts_by(source, root, timeout=30):
    host, problems = _gpu_query.query(source, timeout)
    return _gpu_query.complete(host, problems, root=str(root))


def comparable(host):
    """Without what only one source can tell; a GPU that does not answer is asked for different things."""
    gpus = []
    for gpu in host["gpus"]:
        known = {"index": gpu["index"], "state": gpu["state"]}
        if gpu["state"] == "ok":
            processes = sorted(gpu["processes"], key=lambda process: process["pid"])
            known = dict(gpu, processes=processes, compute_capability_source=None)
            for key in ("addressing_mode", "numa_node", "cpu_affinity"):
                known.pop(key)
        gpus.append(known)
    keys = ("driver_version", "cuda_driver_version", "attached_gpus")
    codes = sorted(error["code"] for error in host["errors"])
    return dict({key: host[key] for key in keys}, gpus=gpus, errors=codes)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "hang"])
def test_both_sources_agree(profile, name, tmp_path):
    profile(name)
    by_nvml, by_smi = facts_by("nvml", tmp_path), facts_by("nvidia-smi", tmp_path)
    assert (by_nvml["source"], by_smi["source"]) == ("nvml", "nvidia-smi")
    assert comparable(by_nvml) == comparable(by_smi)
    if all(gpu["state"] == "ok" for gpu in by_nvml["gpus"]):
        assert by_nvml["links"] == by_smi["links"]
    assert facts_by("auto", tmp_path)["source"] == "nvml"


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "hang"])
def test_pynvml_and_the_binding_agree(profile, name, tmp_path, monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    profile(name)
    binding = _gpu_query._nvml_module()
    by_binding = facts_by("nvml", tmp_path)
    monkeypatch.setattr(pynvml, "nvmlLib", None)

    def load_simulated_library():
        import ctypes

        pynvml.nvmlLib = ctypes.CDLL(binding._libraries[0])
        return pynvml

    monkeypatch.setattr(_gpu_query, "_nvml_module", load_simulated_library)
    assert facts_by("nvml", tmp_path) == by_binding


@pytest.mark.parametrize("source", ["nvml", "nvidia-smi"])
@pytest.mark.skipif("hang" not in PROFILES, reason="the lab has no driver that hangs")
def test_a_driver_that_hangs(profile, source, tmp_path):
    profile("hang")
    host = facts_by(source, tmp_path, timeout=0.5)
    assert [error["code"] for error in host["errors"]] == ["driver_timeout"]

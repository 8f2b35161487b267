"""An engine that does not start is helped by the ladder; one that serves is tuned, also after an interruption."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
INVENTORY = yaml.safe_load((SCENARIO / "inventory/hosts.yml").read_text())
HOST = f"{INVENTORY['all']['vars']['lab_name']}-gpu1"
KEY = (Path.home() / ".cache/gpufleet-lab/keys/api_key").read_text().strip()

#: With more than 8 sequences it dies, and above 2400 tokens, as a GPU with too little memory does.
REPLAY = {
    "startup_seconds": 1,
    # Long against what a busy machine adds to a request: the noise must stay below what twice the requests gain.
    "seconds_per_token": 0.06,
    "model": {"weights_gib": 4},
    "faults": ["oom_sampler when max_num_seqs > 8", "oom_kv_cache when max_model_len > 2400"],
}
TUNING = {
    "vllm_tune_confirm": True,
    "vllm_tune_start": "running",
    "vllm_tune_max_model_len": 2560,
    "vllm_tune_parameters": ["max_model_len", "max_num_seqs"],
    "vllm_tune_load": {"input_tokens": 30, "output_tokens": 10, "concurrency": 8, "prompts": 16, "repeats": 2},
    "tune_instance": {"engine_args": {"max_num_seqs": 4}},
}


def on_the_host(script: str, text: str = "") -> str:
    command = ["docker", "exec", "--interactive", HOST, "bash", "-c", script]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True).stdout


def replay(**settings: Any) -> None:
    path = "/etc/gpufleet-driver/replay.json"
    on_the_host(f"cat > {path}.new && mv {path}.new {path}", json.dumps({**REPLAY, **settings}))


def start(playbook: str, log: Path, **variables: Any) -> subprocess.Popen[bytes]:
    command = ["ansible-playbook", "--inventory", f"{SCENARIO}/inventory", "--extra-vars", json.dumps(variables)]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, f"{REPOSITORY}/playbooks/{playbook}.yml"],
            cwd=log.parent,
            env={**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg", "PWD": str(log.parent)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a playbook with all of its workers, as a crash of the controller does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def run(playbook: str, log: Path, **variables: Any) -> tuple[int, str]:
    process = start(playbook, log, **variables)
    try:
        status = process.wait(480)
    finally:
        kill(process)
    output = log.read_text(encoding="utf-8")
    assert KEY not in output
    return status, output


def ledger(kind: str) -> list[dict[str, Any]]:
    lines = on_the_host("cat /var/lib/vllm/demo/ledger.jsonl 2>/dev/null || true").splitlines()
    return [row for row in map(json.loads, lines) if row.get("kind") == kind]


def arguments() -> dict[str, Any]:
    """What the engine runs with."""
    plan = json.loads(on_the_host("cat /etc/vllm/demo/plan.json"))
    return {argument["name"]: argument["value"] for argument in plan["arguments"]}


def test_the_ladder_helps_an_engine_that_does_not_start(tmp_path):
    replay()
    asked = {"engine_args": {"max_num_seqs": 16}}
    status, output = run("deploy_vllm", tmp_path / "ladder", vllm_instance_ladder=True, tune_instance=asked)
    assert status == 0, output[-5000:]
    (row,) = ledger("ladder")
    assert (row["variable"], row["from"], row["to"]) == ("engine_args.max_num_seqs", 16, 8)
    assert (row["outcome"], row["kept"]) == ("serves", True)
    assert arguments()["max_num_seqs"] == 8
    assert "serves after 1 changes" in output and "max_num_seqs: 8" in output


def test_an_engine_is_not_tuned_by_accident(tmp_path):
    status, output = run("tune_vllm", tmp_path / "refused")
    assert status != 0
    assert "clients are interrupted" in output and "vllm_tune_confirm=true" in output
    assert ledger("tune") == []


def test_tuning_finds_the_boundaries_and_goes_on_after_an_interruption(tmp_path):
    interrupted = start("tune_vllm", tmp_path / "interrupted", **TUNING)
    deadline = time.monotonic() + 120
    while not ledger("tune"):
        assert time.monotonic() < deadline, (tmp_path / "interrupted").read_text()[-5000:]
        time.sleep(0.5)
    kill(interrupted)
    before = ledger("tune")

    files = {"vllm_experience": "experience.json", "vllm_tune_report": "report.html"}
    status, output = run("tune_vllm", tmp_path / "resumed", **TUNING, **files)
    assert status == 0, output[-5000:]
    rows = ledger("tune")
    assert rows[: len(before)] == before
    assert [row["number"] for row in rows] == [*range(1, len(rows)), len(rows)]
    assert rows[0]["stage"] == "as it is" and rows[-1]["stage"] == "end"

    # 2560 tokens do not start, 2304 do, and 10 % of that are left. No more than 8 requests are sent at once.
    found = arguments()
    assert found["max_model_len"] == 2064
    assert found["max_num_seqs"] == 8
    tried = [row for row in rows[:-1] if row["change"]]
    assert [row["change"]["to"] for row in tried] == [2560, 2304, 2064, 8]
    assert [row["outcome"] for row in tried] == ["failed", "serves", "serves", "serves"]
    assert "boundary" in tried[0]["verdict"] and "kept: +" in tried[-1]["verdict"]
    assert "max_num_seqs: 8" in output

    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "<script" not in page
    receipts = json.loads((tmp_path / "experience.json").read_text(encoding="utf-8"))["receipts"]
    assert receipts and all(entry["receipt"]["measured"]["kv_tokens"] for entry in receipts)
    assert KEY not in page + json.dumps(receipts) + json.dumps(rows)

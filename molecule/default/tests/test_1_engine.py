"""The engine that the playbook deployed: what runs, what it answers, and what nobody can see of it."""

from __future__ import annotations

import json


def request(host, route, body, with_key=True):
    """Sends a request as smoke.sh does. The key never stands in a command: Ansible, too, logs those to the journal."""
    header = "sed -n 's/^VLLM_API_KEY=/Authorization: Bearer /p' /etc/vllm/demo/engine.env"
    command = (
        f"curl --silent --max-time 60 --write-out '\n%{{http_code}}' http://127.0.0.1:8000{route} "
        f"--header 'Content-Type: application/json' --data '{json.dumps(body)}'"
    )
    output = host.check_output(f"{header} | {command} --header @-" if with_key else command)
    text, status = output.rsplit("\n", 1)
    return int(status), text


def test_the_unit_runs_and_is_enabled(host):
    service = host.service("vllm-demo")
    assert service.is_running, host.run("journalctl --unit vllm-demo --lines 50 --no-pager").stdout
    assert service.is_enabled


def test_the_unit_reads_as_one_docker_run(host):
    unit = host.file("/etc/systemd/system/vllm-demo.service").content_string
    start = unit.index("ExecStart=/usr/bin/docker run")
    lines = [line.strip(" \\") for line in unit[start : unit.index("ExecStop=")].splitlines()]
    assert "vllm/vllm-openai:v0.32.0 /models/tiny-chat" in lines
    assert "--shm-size 16g" in lines
    assert "--cap-drop ALL" in lines
    assert "--env HF_HUB_OFFLINE=1" in lines
    assert "--volume /data/models/tiny-chat:/models/tiny-chat:ro" in lines
    assert "--env-file /etc/vllm/demo/engine.env" in lines
    assert any(line.startswith('--gpus "\\"device=GPU-') for line in lines)


def test_a_crash_loop_ends(host):
    properties = host.check_output("systemctl show vllm-demo --property StartLimitBurst,Restart")
    assert "StartLimitBurst=3" in properties
    assert "Restart=always" in properties


def test_it_is_offline(host):
    assert host.check_output("ip route show default") == ""


def test_what_it_worked_out_outlives_its_container(host):
    assert host.check_output("find /var/cache/vllm -mindepth 2 -type f -print -quit") != ""


def test_it_completes_with_the_key(host):
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 64,
        "temperature": 0,
    }
    status, text = request(host, "/v1/chat/completions", body)
    assert status == 200, text
    # What roles/lab/files/checkpoint/make_checkpoint.py taught it: weights, tokenizer and chat template all arrived.
    assert json.loads(text)["choices"][0]["message"]["content"] == "Hello from a real vLLM on a simulated GPU host."


def test_it_refuses_without_the_key(host):
    status, _text = request(host, "/v1/chat/completions", {"model": "demo", "messages": []}, with_key=False)
    assert status == 401


def test_the_key_is_only_in_its_file(host, api_key):
    file = host.file("/etc/vllm/demo/engine.env")
    assert (file.user, file.mode) == ("root", 0o600)
    assert len(api_key) == 40
    assert api_key not in host.check_output("ps -eww -o args")
    assert api_key not in host.check_output("journalctl --no-pager")
    key = "sed -n 's/^VLLM_API_KEY=//p' /etc/vllm/demo/engine.env"
    found = host.check_output(f"{key} | grep -r --files-with-matches --file - /etc/systemd /etc/vllm /var/lib/vllm")
    assert found.split() == ["/etc/vllm/demo/engine.env"]


def test_vllm_measured_what_was_planned(receipt, plan):
    # 1 GiB at 2 x 4 layers x 2 heads x 32 x 2 bytes = 1,024 bytes a token.
    assert plan["kv"]["tokens"] == 1024**3 // 1024
    assert receipt["measured"]["kv_tokens"] == plan["kv"]["tokens"]

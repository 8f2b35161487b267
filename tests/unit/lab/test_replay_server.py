# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The replay engine as a process: its API, how it ends, and how a test changes it while it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_process import REPLAY, SECONDS, Engine, make_checkpoint

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import release
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose

KEY = "sk-replay"
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = make_checkpoint(tmp_path_factory.mktemp("served") / "model")
    with Engine(path, key=KEY) as engine:
        yield engine.wait_until_it_serves()


def metric(engine: Engine, name: str) -> float:
    _status, text = engine.request("GET", "/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
    return float(line.rsplit(" ", 1)[1])


# -- the API ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method, path", [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/v1/none")])
def test_guarded_paths_want_the_key(method: str, path: str, engine: Engine) -> None:
    for key in (None, "sk-other"):
        assert engine.request(method, path, CHAT, key) == (401, {"error": "Unauthorized"})
    assert engine.request(method, path, CHAT, KEY)[0] != 401


def test_other_paths_do_not_want_the_key(engine: Engine) -> None:
    for path in ("/health", "/ping", "/version", "/metrics", "/load", "/openapi.json"):
        assert engine.request("GET", path)[0] == 200, path
    assert engine.request("POST", "/invocations", CHAT)[0] == 200
    assert engine.request("POST", "/tokenize", {"prompt": "Say hello."})[1]["count"] == 3


def test_a_method_that_no_route_has_tells_whether_the_path_is_guarded(engine: Engine) -> None:
    """As vLLM's server does; the module route_probe asks in this way."""
    assert [engine.request("REPORT", path)[0] for path in ("/v1/models", "/invocations", "/none")] == [401, 405, 404]


def test_its_routes_exist_in_the_release_and_are_guarded_alike(engine: Engine) -> None:
    known = release("0.27.1").routes
    _status, listed = engine.request("GET", "/openapi.json")
    for path, methods in listed["paths"].items():
        assert {method.upper() for method in methods} <= set(known[path]["methods"].split(", ")), path
        status, _answer = engine.request(next(iter(methods)).upper(), path, {})
        assert (status == 401) is known[path]["guarded"], path


def test_it_answers_the_same_to_the_same(engine: Engine) -> None:
    answers = [engine.request("POST", "/v1/chat/completions", CHAT, KEY)[1] for _time in range(2)]
    texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1 and texts != {""}
    assert answers[0]["usage"]["completion_tokens"] == len(texts.pop().split())
    other = {**CHAT, "messages": [{"role": "user", "content": "Say goodbye."}]}
    assert engine.request("POST", "/v1/chat/completions", other, KEY)[1]["choices"] != answers[0]["choices"]


def test_an_answer_is_cut_at_max_tokens(engine: Engine) -> None:
    request = {"model": "demo", "prompt": "Say hello.", "max_tokens": 3}
    (choice,) = engine.request("POST", "/v1/completions", request, KEY)[1]["choices"]
    assert (len(choice["text"].split()), choice["finish_reason"]) == (3, "length")
    request.update(max_tokens=40, ignore_eos=True)
    assert engine.request("POST", "/v1/completions", request, KEY)[1]["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize("path, piece", [("/v1/chat/completions", "delta"), ("/v1/completions", "text")])
def test_a_stream_says_the_same_as_a_whole_answer(path: str, piece: str, engine: Engine) -> None:
    request = {**CHAT, "prompt": "Say hello."}
    whole = engine.request("POST", path, request, KEY)[1]["choices"][0]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    _status, text = engine.request("POST", path, {**request, **options}, KEY)
    *events, end, _rest = text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    pieces = [chunk["choices"][0] for chunk in chunks[:-1]]
    said = "".join(one["delta"]["content"] if piece == "delta" else one["text"] for one in pieces)
    assert said == (whole["message"]["content"] if piece == "delta" else whole["text"])
    assert (end, pieces[-1]["finish_reason"]) == ("data: [DONE]", "stop")
    assert chunks[-1]["usage"]["completion_tokens"] == len(said.split())


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/chat/completions", {**CHAT, "model": "other"}, 404, "The model `other` does not exist."),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 5000}, 400, "maximum context length is 2048 tokens"),
        ("/v1/chat/completions", "{", 400, "JSON decode error"),
        ("/v1/embeddings", {"input": "x"}, 404, "Not Found"),
        ("/nothing", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)
def test_it_refuses_what_vllm_refuses(path: str, body: Any, status: int, said: str, engine: Engine) -> None:
    got, answer = engine.request("POST", path, body, KEY)
    assert got == status
    assert said in json.dumps(answer)


def test_it_lists_its_model(engine: Engine) -> None:
    (model,) = engine.request("GET", "/v1/models", key=KEY)[1]["data"]
    assert (model["id"], model["max_model_len"]) == ("demo", 2048)


def test_it_counts_requests_and_tokens(engine: Engine) -> None:
    before = metric(engine, "generation_tokens_total")
    usage = engine.request("POST", "/v1/chat/completions", CHAT, KEY)[1]["usage"]
    assert metric(engine, "generation_tokens_total") == before + usage["completion_tokens"]
    assert metric(engine, "num_requests_running") == metric(engine, "num_requests_waiting") == 0


def test_the_log_has_requests_and_no_key(engine: Engine) -> None:
    engine.request("GET", "/health")
    engine.wait_for_line('"GET /health HTTP/1.1" 200 OK')
    assert KEY not in engine.log
    assert engine.log.startswith("gpufleet-lab-replay: ")


def test_an_embedding_model_embeds(checkpoint: Path) -> None:
    with Engine(checkpoint, "--runner=pooling") as engine:
        engine.wait_until_it_serves()
        vectors = [
            engine.request("POST", "/v1/embeddings", {"model": "demo", "input": text})[1]["data"][0]["embedding"]
            for text in ("Hello", "Hello", "Goodbye")
        ]
        assert vectors[0] == vectors[1] != vectors[2]
        assert sum(value * value for value in vectors[0]) == pytest.approx(1)
        assert engine.request("POST", "/v1/chat/completions", CHAT)[0] == 404


def test_requests_wait_for_a_place_in_the_batch(checkpoint: Path) -> None:
    with Engine(checkpoint, "--max-num-seqs=1", seconds_per_token=0.2) as engine:
        engine.wait_until_it_serves()
        threads = [
            threading.Thread(target=engine.request, args=("POST", "/v1/chat/completions", CHAT)) for _client in "abc"
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + SECONDS
        while (metric(engine, "num_requests_running"), metric(engine, "num_requests_waiting")) != (1, 2):
            assert time.monotonic() < deadline
        assert metric(engine, "kv_cache_usage_perc") > 0
        engine.change(metrics={"num_preemptions_total": 7})
        assert metric(engine, "num_preemptions_total") == 7
        assert engine.stop() == 0
        for thread in threads:
            thread.join(SECONDS)


# -- faults while it serves -------------------------------------------------------------------------------------------
def test_a_running_engine_takes_new_settings(checkpoint: Path) -> None:
    with Engine(checkpoint, key=KEY) as engine:
        engine.wait_until_it_serves()
        route = ("POST", "/v1/chat/completions", CHAT)
        engine.change(faults=["empty_answer"])
        assert engine.request(*route, key=KEY)[1]["choices"][0]["message"]["content"] == ""
        engine.change(faults=["no_key_check"])
        assert engine.request(*route)[0] == 200
        engine.change(faults=["request_error"])
        assert (engine.request(*route, key=KEY)[0], engine.request("GET", "/health")[0]) == (500, 200)
        engine.change(faults=["unhealthy"])
        assert engine.request("GET", "/health")[0] == 503
        engine.change(faults=["chat_template_missing"])
        assert engine.request(*route, key=KEY)[0] == 400
        assert diagnose(engine.log)[0]["class"] == "chat_template_missing"
        engine.change(faults=[])
        assert engine.request(*route, key=KEY)[0] == 200


def test_settings_can_be_those_of_one_instance(checkpoint: Path) -> None:
    with Engine(checkpoint, instances={"demo": {"faults": ["unhealthy"]}, "other": {"faults": ["killed"]}}) as engine:
        assert engine.wait_until_it_serves().request("GET", "/health")[0] == 503


def test_it_dies_after_some_requests_as_vllm_does(checkpoint: Path) -> None:
    with Engine(checkpoint, faults=[{"fault": "illegal_memory_access", "after_requests": 3}]) as engine:
        engine.wait_until_it_serves()
        for _time in range(2):
            assert engine.request("POST", "/v1/chat/completions", CHAT)[0] == 200
        assert engine.process.poll() is None
        engine.request("POST", "/v1/chat/completions", CHAT)
        assert engine.exit_code() == 0
        assert "EngineDeadError" in engine.log
        assert diagnose(engine.log)[0]["class"] == "kernel_backend"


def test_it_dies_after_some_seconds_with_the_code_that_is_asked_for(checkpoint: Path) -> None:
    with Engine(checkpoint, faults=[{"fault": "oom_serving", "after_seconds": 0.3, "exit_code": 7}]) as engine:
        engine.wait_until_it_serves()
        assert engine.request("GET", "/health")[0] == 200
        assert engine.exit_code() == 7


def test_an_hour_passes_as_fast_as_is_asked_for(checkpoint: Path) -> None:
    with Engine(checkpoint, faults=[{"fault": "oom_serving", "after_seconds": 3600}]) as engine:
        engine.wait_until_it_serves()
        time.sleep(0.5)
        assert engine.process.poll() is None
        engine.change(clock_rate=36000)
        assert engine.exit_code() == 0
        assert diagnose(engine.log)[0]["class"] == "oom_runtime"


@pytest.mark.parametrize("phase", ["loading", "serving"])
def test_it_can_be_killed(phase: str, checkpoint: Path) -> None:
    with Engine(checkpoint, faults=[{"fault": "killed", "phase": phase}]) as engine:
        assert engine.exit_code() == -signal.SIGKILL
        assert ("Application startup complete." in engine.log) is (phase == "serving")


def test_a_request_can_hang_while_health_is_good(checkpoint: Path) -> None:
    with Engine(checkpoint, faults=[{"fault": "hang", "phase": "serving"}]) as engine:
        engine.wait_until_it_serves()
        with socket.create_connection(("127.0.0.1", engine.port)) as connection:
            body = json.dumps(CHAT)
            connection.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert engine.request("GET", "/health")[0] == 200
        assert engine.stop() == 0


# -- the start and the end --------------------------------------------------------------------------------------------
def test_a_start_that_hangs_says_so_and_can_be_stopped(checkpoint: Path) -> None:
    fault = {"fault": "hang", "phase": "profiling"}
    with Engine(checkpoint, "-tp=2", faults=[fault], hang_line_seconds=0.02) as engine:
        while engine.log.count("No available shared memory broadcast block") < 10:
            assert engine.process.poll() is None
            time.sleep(0.02)
        assert diagnose(engine.log)[0]["class"] == "nccl_hang"
        with pytest.raises(ConnectionRefusedError):
            engine.request("GET", "/health")
        assert engine.stop() == 128 + signal.SIGINT


def test_a_phase_can_be_slow(checkpoint: Path) -> None:
    began = time.monotonic()
    with Engine(checkpoint, phase_seconds={"loading": 1.0}) as engine:
        engine.wait_for_line("Loading safetensors checkpoint shards:   0% Completed | 0/1")
        assert "Loading weights took" not in engine.log
        engine.wait_until_it_serves()
    assert time.monotonic() - began > 1.0


def test_it_stops_in_good_order(checkpoint: Path) -> None:
    with Engine(checkpoint) as engine:
        assert engine.wait_until_it_serves().stop() == 0
        assert "Application shutdown complete." in engine.log


def test_a_port_that_is_taken_is_found_before_the_engine_starts(checkpoint: Path) -> None:
    with Engine(checkpoint) as first:
        first.wait_until_it_serves()
        with Engine(checkpoint, f"--port={first.port}") as second:
            assert second.exit_code() == 1
            assert diagnose(second.log)[0]["class"] == "port_in_use"
            assert "Initializing a V1 LLM engine" not in second.log
        assert first.request("GET", "/health")[0] == 200


def test_a_wrong_setting_is_named(checkpoint: Path) -> None:
    with Engine(checkpoint, fautls=[]) as engine:
        assert engine.exit_code() == 64
        assert "unknown settings fautls" in engine.log


def test_it_asks_nvidia_smi_for_the_gpus(checkpoint: Path, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA L40S, 46068, 45464, 8.9, 604, GPU-1'\n")
    smi.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPLAY),
        "REPLAY_FILE": "/nonexistent",
        "REPLAY_RELEASE": "0.27.1",
        "REPLAY_STARTUP_SECONDS": "0",
        "REPLAY_MODEL": '{"weights_gib": 100}',
    }
    command = [sys.executable, "-m", "gpufleet_replay", str(checkpoint), "--host=127.0.0.1", "--port=0"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "GPU 0 has a total capacity of 44.40 GiB" in ended.stdout


def test_it_tells_the_driver_what_it_holds_until_it_ends(checkpoint: Path, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA L40S, 46068, 45464, 8.9, 604, GPU-1'\n")
    smi.chmod(0o755)
    allocations = tmp_path / "allocations"
    allocations.mkdir()
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "GPUFLEET_DRIVER_ALLOCATIONS": str(allocations),
    }
    with Engine(checkpoint, "--gpu-memory-utilization=0.5", environment=environment, gpus=None) as engine:
        engine.wait_until_it_serves()
        (file,) = allocations.iterdir()
        told = json.loads(file.read_text())
        assert told["name"] == "VLLM::EngineCore"
        # Half of the 44.40 GiB, with what vLLM counts as its own.
        assert told["gpus"]["GPU-1"] == pytest.approx(44.40 / 2 * 1024, rel=0.05)
        assert engine.stop() == 0
    assert not list(allocations.iterdir())


def test_it_tells_its_version() -> None:
    environment = {"PYTHONPATH": str(REPLAY), "REPLAY_RELEASE": "0.31.0"}
    command = [sys.executable, "-m", "gpufleet_replay", "--version"]
    assert subprocess.check_output(command, env=environment, text=True, timeout=SECONDS) == "0.31.0\n"

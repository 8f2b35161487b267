"""Real vLLM: two stages over two hosts answer token by token what two GPUs of one host answer."""

from __future__ import annotations

import json

from pair import playbook

#: What roles/lab/files/checkpoint/make_checkpoint.py taught the model; the scenario default gets it from one GPU.
TAUGHT = "Hello from a real vLLM on a simulated GPU host."

REAL = {
    "pair_image": "vllm/vllm-openai:v0.32.0",
    "vllm_image_source": {"archive": "/data/images/vllm-openai-v0.32.0.tar"},
    # The lab's image skips the warm-up. Without it the second stage of the CPU build fails its first request.
    "pair_environment": {"VLLM_CPU_CI_ENV": "0"},
}
CPU = {"kv_cache_memory_bytes": 1 << 30, "compilation_config": {"mode": 2, "backend": "eager"}}


def tokens(engine) -> list[int]:
    """The tokens of its answer, which is what the model was taught."""
    answer = engine.answer(return_token_ids=True)
    assert answer and answer["message"]["content"] == TAUGHT, answer or engine.journals()
    return list(answer["token_ids"])


def test_two_stages_over_two_hosts_and_two_gpus_of_one_host(pair):
    stages = {**CPU, "tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    result = playbook(pair_engine_args=stages, vllm_all_reduce=True, **REAL).succeeded()
    assert "all-reduce" in result.output
    receipt = json.loads(pair.first.read("cat /var/lib/vllm/demo/receipt.json"))
    # Two layers a stage: 2 x 2 layers x 2 heads x 32 x 2 bytes a token, of 1 GiB.
    assert receipt["measured"]["kv_tokens"] == receipt["planned"]["kv_tokens"] == (1 << 30) // 512
    over_hosts = tokens(pair)
    assert len(over_hosts) > 5

    # The same instance, on one of its hosts: the other one is not part of it any more.
    shared = {**CPU, "tensor_parallel_size": 2}
    playbook("--limit", "gpu1", pair_span=[], pair_engine_args=shared, **REAL).succeeded()
    assert tokens(pair) == over_hosts
    assert pair.first.run("systemctl is-active vllm-members@demo").stdout.strip() == "inactive"

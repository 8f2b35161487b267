# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import shlex

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import ArgumentProblem
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._launch import docker_run, systemd_command

PLAN = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.32.0",
    "release": {"version": "0.32.0"},
    "checkpoint": "/data/models/m",
    "served_model_name": "chat",
    "address": "127.0.0.1",
    "port": 8001,
    "devices": {"gpu1": ["GPU-aaaa", "GPU-bbbb"]},
    "environment": {"VLLM_LOGGING_LEVEL": "DEBUG"},
    "arguments": [{"name": "max_model_len", "value": 2048}],
}


def command(**changes):
    return docker_run({**PLAN, **changes}, "/etc/vllm/chat/engine.env", "/var/cache/vllm/v0.32.0-A100")


def test_the_engine_gets_exactly_the_chosen_gpus():
    argv = command()
    assert argv[argv.index("--gpus") + 1] == '"device=GPU-aaaa,GPU-bbbb"'


def test_the_model_is_mounted_read_only_and_the_image_comes_before_the_engine_s_own_words():
    argv = command()
    assert "/data/models/m:/models/m:ro" in argv
    engine = argv[argv.index("vllm/vllm-openai:v0.32.0") + 1 :]
    assert engine[0] == "/models/m"
    assert engine[engine.index("--max-model-len") + 1] == "2048"
    assert engine[engine.index("--port") + 1] == "8001"


def test_no_variable_of_the_plan_can_put_the_engine_online():
    argv = command(environment={"HF_HUB_OFFLINE": "0"})
    assert "HF_HUB_OFFLINE=1" in argv
    assert "HF_HUB_OFFLINE=0" not in argv


def test_vllm_keeps_what_it_compiles_in_the_folder_of_the_host():
    argv = command(environment={"VLLM_CACHE_ROOT": "/tmp"})
    (kept,) = [word.partition("=")[2] for word in argv if word.startswith("VLLM_CACHE_ROOT=")]
    assert f"/var/cache/vllm/v0.32.0-A100:{kept}" in argv


def test_what_the_release_does_not_take_is_refused():
    with pytest.raises(ArgumentProblem, match="swap"):
        command(extra_args=["--swap-space", "4"])


def test_secrets_come_from_a_file():
    argv = command()
    assert argv[argv.index("--env-file") + 1] == "/etc/vllm/chat/engine.env"


def test_each_option_stands_on_a_line_of_its_own():
    lines = systemd_command(command()).splitlines()
    assert "    --max-model-len 2048" in lines
    assert "    vllm/vllm-openai:v0.32.0 /models/m \\" in lines
    assert all(line.endswith("\\") for line in lines[:-1])


@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "",
        "two words",
        'a "quoted" word',
        "it's",
        "back\\slash",
        "50%",
        "$HOME",
        "a;b|c&d",
        json.dumps({"mode": 2}),
        "ü",
    ],
)
def test_systemd_hands_every_word_over_as_it_was(word):
    assert unquote(systemd_command(["/bin/true", "--option", word])) == ["/bin/true", "--option", word]


def unquote(text: str) -> list[str]:
    """Reads an ExecStart value by the rules of systemd.service(5), the shell's for these words but for % and $."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text.replace(" \\\n", " "))]


def test_the_image_is_what_docker_calls_it_and_is_never_pulled_at_a_start():
    argv = docker_run(PLAN, "/etc/vllm/chat/engine.env", "/var/cache/vllm/x", image="sha256:aaaa")
    assert argv[argv.index("--pull") + 1] == "never"
    assert argv[argv.index("sha256:aaaa") + 1] == "/models/m"
    assert PLAN["image"] not in argv

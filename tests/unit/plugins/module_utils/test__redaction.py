# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets are made up. Each is planted as vLLM, Docker, curl, git or a person would leave it."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._redaction import redact, redact_users

SECRET = "pLanted0123456789secret"
# In pieces: a path of a user must not stand in this repository.
HOME, USERS = "/" + "home", "/" + "Users"


@pytest.mark.parametrize(
    "text",
    [
        f"non-default args: {{'api_key': ['{SECRET}', 'x{SECRET}'], 'model': '/m'}}",
        f"args: Namespace(api_key='{SECRET}', port=8000)",
        f"vllm serve /m --api-key {SECRET} --port 8000",
        f"vllm serve /m --api-key {SECRET} second-{SECRET}",
        f"vllm serve /m --api-key={SECRET}",
        f"['serve', '--api-key', '{SECRET}', '--port', '8000']",
        f"VLLM_API_KEY={SECRET}",
        f"HF_TOKEN={SECRET}",
        f"HUGGING_FACE_HUB_TOKEN: {SECRET}",
        f'{{"Env": ["AWS_SECRET_ACCESS_KEY={SECRET}", "A=b"]}}',
        f"'hf_token': '{SECRET}'",
        f"password: {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' http://x/v1",
        f'"Authorization": "Basic {SECRET}"',
        f"authorization={SECRET}",
        f"x-api-key: {SECRET}",
        f"https://bob:{SECRET}@registry.example:5000/v2/",
        f"http_proxy=http://bob:{SECRET}@proxy:3128",
        f"git clone https://{SECRET}@github.com/x/y",
        f"https://x.example/y?X-Amz-Signature={SECRET}&a=1",
        f"GET /m?token={SECRET} HTTP/1.1",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n(the rest was cut off)",
    ],
)
def test_a_planted_secret_is_taken_out(text):
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijABCDEFGHIJ12",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijABCDEFGHIJ1234567890",
        "glpat-abcdefghij1234567890",
        "nvapi-abcdefghij1234567890",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ],
)
def test_a_secret_is_known_by_its_shape(text):
    assert redact(f"the line has {text} in it") == "the line has *** in it"


def test_a_secret_that_is_known_is_taken_out_wherever_it_stands():
    assert redact("seen correct-horse in a prompt", ["correct-horse"]) == "seen *** in a prompt"


def test_a_known_value_that_is_too_short_would_take_out_everything():
    assert redact("on and on", ["on"]) == "on and on"


@pytest.mark.parametrize(
    "line",
    [
        "tokenizer='/models/tok', max_tokens=16, pad_token='<pad>' eos_token_id=2",
        "GPU KV cache size: 1,234 tokens, Maximum concurrency for 8,192 tokens per request: 44.73x",
        "api_key=None token=None",
        "Avg prompt throughput: 10.0 tokens/s",
        "INFO 05-30 07:40:19 [x.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.",
        "http://127.0.0.1:8000/v1/models",
        "File /usr/lib/python3.12/secrets.py, line 4",
    ],
)
def test_what_is_no_secret_stays(line):
    assert redact(line) == line


@pytest.mark.parametrize(
    "data",
    [
        {"api_key": SECRET, "port": 8000},
        {"token": 123456789, "keys": {"api_keys": [SECRET, "b"]}},
        {"HostConfig": {"Env": [f"HF_TOKEN={SECRET}"]}, "password": 'with "quotes" in it'},
        {"Args": ["--api-key", SECRET, "--port", "8000"], "Authorization": f"Bearer {SECRET}"},
    ],
)
def test_what_was_json_is_json(data):
    text = redact(json.dumps(data), [SECRET])
    assert json.loads(text).keys() == data.keys()
    assert SECRET not in text
    assert "123456789" not in text.replace(SECRET, "")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (f'File "{HOME}/alice/venv/x.py"', f'File "{HOME}/***/venv/x.py"'),
        (f"{USERS}/alice/models", f"{USERS}/***/models"),
        ("/data/users/alice/models", "/data/users/***/models"),
        (r"C:\Users\alice\models", r"C:\Users\***\models"),
        ("alice@example.org wrote", "***@example.org wrote"),
        ("/root/.cache/vllm and /data/models", "/root/.cache/vllm and /data/models"),
    ],
)
def test_names_of_users_are_taken_out(text, without):
    assert redact_users(text) == without
    assert redact_users(redact_users(text)) == without

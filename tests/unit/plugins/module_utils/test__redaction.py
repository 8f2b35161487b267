# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets are made up. Each is planted as vLLM, Docker, curl, git or a person would leave it."""

from __future__ import annotations

import base64
import html
import json
import time
import urllib.parse

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
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}\n-----END PGP PRIVATE KEY BLOCK-----",
        # JSON within JSON, as Docker's log files and plans in messages have it
        json.dumps({"log": json.dumps({"api_key": SECRET})}),
        json.dumps({"log": json.dumps({"log": json.dumps({"hf_token": SECRET})})}),
        json.dumps({"log": json.dumps(["--api-key", SECRET, "--port", "1"])}),
        json.dumps({"log": repr({"api_key": f"a {SECRET}"})}),
        json.dumps(["--hf-token", SECRET], indent=1),
        f"--hf-token\n{SECRET}",
        f"vllm\0serve\0--api-key\0{SECRET}\0--port",
        # YAML
        f"api_keys:\n  - {SECRET}\n  - x{SECRET}\n",
        f"vllm_api_keys:\n  chat: {SECRET}\n",
        f"password: >-\n  {SECRET}",
        f"vllm_api_keys={{'chat': '{SECRET}'}}",
        # the environment
        f"VLLM_API_KEY=a,b;c&{SECRET}",
        f"VLLM_API_KEY\x1b[0m=\x1b[32m{SECRET}\x1b[0m",
        f'Environment="VLLM_API_KEY={SECRET}" "A=b"',
        f"docker run -e 'REGISTRY_PASS={SECRET}' image",
        f"DB_PWD={SECRET} ansible_become_pass={SECRET}",
        f"token=SecretStr('{SECRET}')",
        f"{{b'authorization': b'Bearer {SECRET}'}}",
        f"[(b'x-api-key', b'{SECRET}'), ('authorization', 'Token {SECRET}')]",
        f"Authorization: Digest username=x, response={SECRET}",
        f"Cookie: session={SECRET}; other=x{SECRET}",
        f"curl -u bob:{SECRET} http://x",
        f"docker login -u bob -p {SECRET} registry.example",
        f"sshpass -p {SECRET} ssh gpu01",
        f"machine huggingface.co login bob password {SECRET}",
        f"<password>{SECRET}</password>",
        f"Incorrect API key provided: {SECRET}",
        f"Invalid API key: {SECRET}",
        f"{{'identitytoken': '{SECRET}', 'SecretAccessKey': '{SECRET}'}}",
        # URLs
        f"https://bob:pa@{SECRET}@registry.example/v2",
        f"https%3A%2F%2Fbob%3A{SECRET}%40registry.example",
        f"GET /v1?x=1%26token%3D{SECRET}",
        f"http://x/?a=1\\u0026token={SECRET}",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;EndpointSuffix=core",
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
        "hf_oauth_abcdefghijABCDEFGHIJ12",
        "api_org_abcdefghijABCDEFGHIJ12",
        "github_pat_11ABCDEFG0abcdefghij_klmnopqrstuvwxyz",
        "dckr_pat_abcdefghij-1234567890",
        "xoxb-1234567890-abcdefghij",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "AKIAABCDEFGHIJKLMNOP",
        "ASIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ],
)
def test_a_secret_is_known_by_its_shape(text):
    assert redact(f"the line has {text} in it") == "the line has *** in it"


@pytest.mark.parametrize("text", [f"bob:{SECRET}", f"VLLM_API_KEY={SECRET}", json.dumps({"password": SECRET})])
def test_a_secret_in_base64_is_taken_out(text):
    encoded = base64.b64encode(text.encode()).decode()
    assert redact(json.dumps({"auths": {"registry.example": {"data": encoded}}})) == json.dumps(
        {"auths": {"registry.example": {"data": "***"}}}
    )


KNOWN = "pa\"s's/w\\örd+&=12345"


@pytest.mark.parametrize(
    "written",
    [
        KNOWN,
        json.dumps(KNOWN),
        json.dumps(KNOWN, ensure_ascii=False),
        json.dumps(json.dumps({"x": KNOWN})),
        repr(KNOWN),
        repr(KNOWN.encode()),
        html.escape(KNOWN),
        urllib.parse.quote(KNOWN),
        urllib.parse.quote(KNOWN, safe=""),
        urllib.parse.quote_plus(KNOWN),
        KNOWN.encode().hex(),
        *(
            base64.b64encode(f"{before}{KNOWN}{after}".encode()).decode()
            for before in ("", "a", "bo")
            for after in "xy"
        ),
        base64.urlsafe_b64encode(KNOWN.encode()).decode(),
    ],
)
def test_a_secret_that_is_known_is_found_as_it_was_written(written):
    left = redact(f"seen {written} there", [KNOWN])
    assert "***" in left
    # Nothing is left of it but what was written around it.
    assert len(left) - len("seen *** there") <= len('"\\"{\\\\\\"x\\\\\\": \\\\\\"\\\\\\"}\\""')


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
        "graph capture pass: 12 of 35; bypass=1; num_pass=3; pass_config={'fuse_norm': True}",
        "token_ids=[1, 2], bos_token: '<s>', valid_tokens: 5, KV B/token = 147456",
        "docker run --user 1000:1000 -u 0:0 image",
        "/models/Qwen3-8B/snapshots/0123456789abcdef0123456789abcdef01234567/model.safetensors",
        "-" * 80,
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
        {"log": json.dumps({"api_key": SECRET, "Env": [f"HF_TOKEN={SECRET}"], "token": 123456789})},
        {"vllm_api_keys": {"chat": SECRET}, "auth": SECRET, "cookie": f"a={SECRET}; b=1"},
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
        (json.dumps({"path": r"C:\Users\alice smith\m"}), json.dumps({"path": r"C:\Users\***\m"})),
        (f"file://{HOME}2//alice/x", f"file://{HOME}2//***/x"),
        (f"{HOME}/alice/m".replace("/", "%2F"), f"{HOME}/***/m".replace("/", "%2F")),
        (f"{HOME}/alice/m".replace("/", r"\/"), f"{HOME}/***/m".replace("/", r"\/")),
        ("USER=alice SUDO_USER=root HOME=/x ~alice/models", "USER=*** SUDO_USER=root HOME=/x ~***/models"),
        ("sudo: alice : TTY=pts/0; alice@gpu01:~$", "sudo: *** : TTY=pts/0; ***@gpu01:~$"),
        ("drwxr-xr-x 2 alice users 4096 models", "drwxr-xr-x 2 *** users 4096 models"),
        ("/var/cache/vllm and /data/models", "/var/cache/vllm and /data/models"),
    ],
)
def test_names_of_users_are_taken_out(text, without):
    assert redact_users(text) == without
    assert redact_users(redact_users(text)) == without


@pytest.mark.parametrize(
    "row", ["-", "/", "\\", "'", "%2F", "token=", "api_key:\n", "a.", '"auth" ', "login ", "A_", "QUJD"]
)
def test_long_rows_of_anything_do_not_stop_it(row):
    began = time.process_time()
    redact_users(redact(row * 3000))
    assert time.process_time() - began < 2

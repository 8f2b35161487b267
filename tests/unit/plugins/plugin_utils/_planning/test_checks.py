# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.checks import check_instance
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.errors import InstanceError

GOOD = {
    "name": "chat-1",
    "port": "8000",
    "address": "0.0.0.0",
    "environment": {"VLLM_LOGGING_LEVEL": "DEBUG"},
    "engine_args": {"max_model_len": -1, "gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8"},
}


def test_an_instance_as_it_should_be():
    check_instance(GOOD)
    check_instance({"name": "Qwen3_8B.v2"})


@pytest.mark.parametrize("name", ["..", "a/b", "a;id", "my demo", "", "-x", None, 42, "a" * 64, "chat\n", "chat$(id)"])
def test_a_name_that_would_be_another_path_or_word(name):
    with pytest.raises(InstanceError, match="name .* cannot be the name of a unit"):
        check_instance({**GOOD, "name": name})


@pytest.mark.parametrize("name", ["images", "downloads", "jobs", "manifests"])
def test_a_name_that_is_a_folder_of_the_collection(name):
    with pytest.raises(InstanceError, match=f"/var/lib/vllm/{name} is a folder of the collection"):
        check_instance({**GOOD, "name": name})


@pytest.mark.parametrize("image", ["--privileged:v0.32.0", "a b:v0.32.0", "vllm:v0.32.0;id", "vllm:v0.32.0@sha256:12"])
def test_an_image_that_would_be_another_word(image):
    with pytest.raises(InstanceError, match="is no name of an image"):
        check_instance({**GOOD, "image": image})


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai:v0.32.0", "R.example:5000/a/b_c.d:v0.9.0@sha256:" + "0" * 64, "mine:v0.20.0-cu129"]
)
def test_an_image_as_it_should_be(image):
    check_instance({**GOOD, "image": image})


@pytest.mark.parametrize("variable", ["served_model_name", "description"])
def test_a_text_that_would_be_another_line_of_the_unit(variable):
    check_instance({**GOOD, variable: "Chat, 100 % für alle"})
    with pytest.raises(InstanceError, match=f"{variable} .* is not one printable line"):
        check_instance({**GOOD, variable: "chat\nExecStart=/bin/false"})


def test_a_block_of_yaml_ends_with_a_line_break():
    check_instance({**GOOD, "description": "For the support team.\n"})


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"engine_args": {"port": 9000}}, "port"),
        ({"engine_args": {"served-model-name": "a"}}, "served_model_name"),
        ({"extra_args": ["--host", "0.0.0.0"]}, "address"),
        ({"extra_args": ["--model=/models/other"]}, "checkpoint"),
    ],
)
def test_what_the_instance_has_a_variable_for(given, variable):
    with pytest.raises(InstanceError, match=f"Write {variable} of the instance"):
        check_instance({**GOOD, **given})


@pytest.mark.parametrize("port", [0, 70000, -1, "http", 80.5])
def test_a_port_that_is_none(port):
    with pytest.raises(
        InstanceError, match="vllm_instances\\[chat-1\\].port .* is no port. Write a number from 1 to 65535"
    ):
        check_instance({**GOOD, "port": port})


@pytest.mark.parametrize("address", ["300.1.1.1", "localhost", "1.2.3"])
def test_an_address_that_is_none(address):
    with pytest.raises(InstanceError, match="is no IP address"):
        check_instance({**GOOD, "address": address})


@pytest.mark.parametrize("environment", [{"FOO BAR": "1"}, {"FOO%n": "1"}, {"1A": "1"}, {"A": "1\nB=2"}, {"": "1"}])
def test_a_variable_that_would_be_another(environment):
    with pytest.raises(InstanceError, match="environment"):
        check_instance({**GOOD, "environment": environment})


def test_a_secret_is_refused_and_not_printed():
    with pytest.raises(InstanceError) as error:
        check_instance({**GOOD, "environment": {"VLLM_API_KEY": "very-secret"}})
    assert "very-secret" not in str(error.value)
    assert "vllm_api_key" in str(error.value)


@pytest.mark.parametrize(
    "pins",
    [
        {"gpu_memory_utilization": 1.5},
        {"gpu_memory_utilization": 0},
        {"max_model_len": -5},
        {"max_model_len": 0},
        {"max_num_seqs": 0},
        {"tensor_parallel_size": "-2"},
        {"kv_cache_memory_bytes": 0},
        {"max_model_len": None},
        {"dtype": None},
    ],
)
def test_a_pin_that_no_engine_takes(pins):
    with pytest.raises(InstanceError, match=f"engine_args.{next(iter(pins))}"):
        check_instance({**GOOD, "engine_args": pins})


@pytest.mark.parametrize(
    "endpoint", ["https://llm.example.org", "http://10.0.0.7:8000", "https://llm.example.org/", "http://[::1]:8000"]
)
def test_where_clients_reach_it(endpoint):
    check_instance({**GOOD, "endpoint": endpoint})


@pytest.mark.parametrize(
    "endpoint",
    [
        "llm.example.org",
        "ftp://llm.example.org",
        "http://",
        "http://llm:port",
        "http://llm:70000",
        "http://llm:0",
        "http://llm/v1",
        "http://user:secret@llm",
        "http://llm?x=1",
        "http://llm example",
        "",
        8000,
    ],
)
def test_an_endpoint_that_is_no_server(endpoint):
    with pytest.raises(InstanceError, match=r"endpoint .* is no URL of a server. Write http\(s\)://host"):
        check_instance({**GOOD, "endpoint": endpoint})


def test_a_password_in_an_endpoint_is_not_shown():
    with pytest.raises(InstanceError) as error:
        check_instance({**GOOD, "endpoint": "http://user:very-secret@llm"})
    assert "very-secret" not in str(error.value)


@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.7", "::"])
def test_a_strict_instance_is_not_published_outside(address):
    with pytest.raises(InstanceError, match=r"exposure 'strict' does not go with address .* without a key"):
        check_instance({"name": "chat", "exposure": "strict", "address": address})


@pytest.mark.parametrize("address", [None, "127.0.0.1", "::1"])
def test_a_strict_instance_is_published_on_loopback(address):
    check_instance({"name": "chat", "exposure": "strict", "address": address})


def test_an_open_instance_may_be_published_anywhere_and_other_words_are_refused():
    check_instance({"name": "chat", "exposure": "open", "address": "0.0.0.0"})
    with pytest.raises(InstanceError, match="is no exposure"):
        check_instance({"name": "chat", "exposure": "closed"})

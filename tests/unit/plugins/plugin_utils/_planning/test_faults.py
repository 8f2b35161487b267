# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with instances is said all at once, with where it stands and what would be right."""

from __future__ import annotations

import pytest
from planning_examples import CONFIGS, argument, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import InstanceError, plan, plan_instances
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.case import unknown_release

CHECKPOINTS = {"/models/tiny": CONFIGS["tiny"]}


def named(name, port, **variables):
    return {
        "name": name,
        "port": port,
        "image": "vllm/vllm-openai:v0.32.0",
        "checkpoint": "/models/tiny",
        **variables,
    }


def faults_of(*instances):
    with pytest.raises(InstanceError) as caught:
        plan_instances(list(instances), hosts(2), CHECKPOINTS, ["gpu01"])
    return [str(error) for error in caught.value.errors], str(caught.value)


def test_all_faults_of_all_instances_are_said_at_once():
    errors, text = faults_of(
        named("a", "http", endpoint="gateway", gpus=[7], workload={"context": "long", "prefer": "speed"}),
        named("b", 8001, image="vllm/vllm-openai:v0.34.0", checkpoint="/models/other", headroom_mib=-1),
        named("c", 8002, engine_args={"swap_space": 4, "max_num_seqs": "many", "max_model_len": None}),
        named("c", 8002),
    )
    wanted = [
        "vllm_instances[a].port 'http'",
        "vllm_instances[a].endpoint 'gateway'",
        "vllm_instances[a].gpus '7'",
        "vllm_instances[a].workload.context 'long'",
        "vllm_instances[a].workload.prefer 'speed'",
        "vllm_instances[b].image 'vllm/vllm-openai:v0.34.0'",
        "vllm_instances[b].checkpoint '/models/other'",
        "vllm_instances[b].headroom_mib -1",
        "vllm_instances[c].engine_args.swap_space 4",
        "vllm_instances[c].engine_args.max_num_seqs 'many'",
        "vllm_instances[c].engine_args.max_model_len None",
        "vllm_instances[c].name 'c'",
        "vllm_instances[c].port 8002",
    ]
    for start in wanted:
        assert any(error.startswith(f"gpu01: {start} ") for error in errors), start
    assert len(errors) == len(wanted) == len(text.splitlines())


def test_one_fault_is_one_line():
    errors, text = faults_of(named("a", 0))
    assert errors == [text]


# -- GPUs ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("subset", "texts"),
    [
        ([7], ["gpus '7' names no GPU there", "gpu1: 0 GPU-H100-0 NVIDIA H100 80GB HBM3", "gpu1: 1 GPU-H100-1"]),
        (["GPU-other", 0], ["gpus 'GPU-other' names no GPU there"]),
        ([], ["gpus [] names no GPU", "leave it out for all GPUs", "gpus: [0, 1]"]),
        ("0,1", ["gpus '0,1' is no list", "gpus: [0, 1]"]),
        (0, ["gpus 0 is no list"]),
    ],
)
def test_a_subset_that_is_not_there_names_the_cards_that_are(subset, texts):
    with pytest.raises(InstanceError) as caught:
        plan(instance("tiny", gpus=subset), hosts(2))
    for text in texts:
        assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_card_that_does_not_work_is_said_to_be_there():
    lost = host(gpu(0), gpu(1, state="lost"))
    with pytest.raises(InstanceError, match=r"gpus '1' names a GPU that does not work \(lost\). There are gpu1: 0 "):
        plan(instance("tiny", gpus=[1]), [lost])


def test_a_card_whose_memory_is_not_told_is_not_said_to_be_missing():
    planned = plan(instance("tiny"), [host(gpu(0, memory_total_mib=None, memory_free_mib=None, name="NVIDIA GB10"))])
    assert planned["verdict"] == "unsupported"
    assert any(need.startswith("the memory of NVIDIA GB10 on gpu1 is not known") for need in planned["needs"])
    none = plan(instance("tiny"), [host()])
    assert any(need.startswith("no usable GPU on gpu1") for need in none["needs"])


def test_a_card_of_one_of_several_hosts_is_enough():
    planned = plan(instance("tiny", gpus=["GPU-H100-1"]), [host(gpu(0)), host(gpu(1), name="gpu2")])
    assert planned["devices"] == {"gpu2": ["GPU-H100-1"]}


# -- divisions ----------------------------------------------------------
@pytest.mark.parametrize(
    ("pins", "texts"),
    [
        ({"tensor_parallel_size": 3}, ["32 attention heads are not divisible by 3", "divide it: 1, 2, 4, 8, 16, 32"]),
        ({"pipeline_parallel_size": 40}, ["the model has 36 layers; 1 to 36 divide them"]),
        ({"decode_context_parallel_size": 2}, ["pin tensor_parallel_size to a multiple of 2"]),
        ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, ["tensor_parallel_size, now 4"]),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, ["at least that, or max_num_seqs 256"]),
    ],
)
def test_a_size_that_does_not_divide_says_which_ones_do(pins, texts):
    planned = plan(instance(engine_args=pins), hosts(8))
    assert planned["verdict"] == "unsupported"
    for text in texts:
        assert any(text in need for need in planned["needs"]), planned["needs"]


def test_more_gpus_than_there_are_say_what_is_there_and_what_would_be_right():
    planned = plan(instance(engine_args={"tensor_parallel_size": 4, "pipeline_parallel_size": 4}), hosts(8))
    assert planned["verdict"] == "does_not_fit"
    assert "16 GPUs" in planned["needs"][0]
    assert "usable are gpu1: 8; tensor_parallel_size could be 1, 2, 4, 8" in planned["needs"][0]


# -- a length that vLLM refuses -----------------------------------------
@pytest.mark.parametrize("release", ["0.9.2", "0.19.0", "0.32.0"])
def test_more_than_the_models_length_is_refused_as_vllm_does_and_predicted_all_the_same(release):
    planned = plan(instance(release=release, engine_args={"max_model_len": 65536}), hosts())
    assert planned["verdict"] == "unsupported"
    assert "40,960" in planned["needs"][0]
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in planned["needs"][0]
    assert planned["kv"]["max_model_len"] == 65536


@pytest.mark.parametrize(
    "variables",
    [
        {"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": True}},
        {"engine_args": {"hf_overrides": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}}},
    ],
)
def test_a_length_beyond_the_models_is_obeyed_where_vllm_allows_it(variables):
    pins = {"max_model_len": 65536, **variables.get("engine_args", {})}
    planned = plan(instance(**{**variables, "engine_args": pins}), hosts())
    assert planned["verdict"] == "fits"
    assert any("more than the model's 40,960" in warning for warning in planned["warnings"])


def test_the_switch_is_off_for_vllm_where_it_says_so():
    environment = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}
    planned = plan(instance(environment=environment, engine_args={"max_model_len": 65536}), hosts())
    assert planned["verdict"] == "unsupported"


# -- texts for numbers and booleans -------------------------------------
TEXTS = [
    ("max_num_seqs", "8", 8),
    ("max_model_len", " 8192 ", 8192),
    ("max_model_len", "8K", "8K"),
    ("kv_cache_memory_bytes", "1073741824", 2**30),
    ("gpu_memory_utilization", "0.5", 0.5),
    ("enforce_eager", "true", True),
    ("enforce_eager", "False", False),
    ("enable_prefix_caching", "yes", True),
    ("enable_prefix_caching", "off", False),
]


@pytest.mark.parametrize(("name", "text", "value"), TEXTS)
def test_surveys_give_texts_and_mean_numbers_and_booleans(name, text, value):
    as_text = plan(instance("tiny", engine_args={name: text}), hosts())
    as_value = plan(instance("tiny", engine_args={name: value}), hosts())
    assert as_text == as_value
    assert argument(as_text, name) == value
    assert type(argument(as_text, name)) is type(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "8.5"),
        ("max_num_seqs", True),
        ("max_num_seqs", "eight"),
        ("max_num_seqs", [8]),
        ("gpu_memory_utilization", "0,9"),
        ("gpu_memory_utilization", True),
        ("enforce_eager", "perhaps"),
        ("enforce_eager", 2),
        ("enable_prefix_caching", ""),
    ],
)
def test_what_is_neither_is_refused_with_its_value(name, value):
    planned = plan(instance("tiny", engine_args={name: value}), hosts())
    assert planned["verdict"] == "unsupported"
    assert [(error["variable"], error["value"]) for error in planned["errors"]] == [(f"engine_args.{name}", value)]


@pytest.mark.parametrize(
    ("text", "trusted"), [("false", False), ("no", False), ("true", True), (True, True), ("", False)]
)
def test_code_is_trusted_only_where_it_is_said(text, trusted):
    planned = plan(instance("tiny", trust_remote_code=text), hosts())
    assert (argument(planned, "trust_remote_code") is True) == trusted


# -- images -------------------------------------------------------------
def test_an_official_tag_without_v_is_warned_of():
    planned = plan({**instance("tiny"), "image": "vllm/vllm-openai:0.32.0"}, hosts())
    assert planned["verdict"] == "fits"
    assert any("start with v" in warning and "v0.32.0" in warning for warning in planned["warnings"])
    for image in ("vllm/vllm-openai:v0.32.0", "registry.local:5000/own/vllm:0.32.0"):
        assert not any("start with v" in w for w in plan({**instance("tiny"), "image": image}, hosts())["warnings"])


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("v0.99.0", "Near it: v0.33.0, v0.32."),
        ("v9.9.9", "Near it: v0.33.0, v0.32."),
        ("v0.9.3", "Near it: v0.9.2, v0.9.1, v0.9.0.1."),
        ("v0.1.0", "Near it: v0.9.0, v0.9.0.1, v0.9.1."),
    ],
)
def test_the_nearest_releases_are_named_first(asked, near):
    _fault, remedy = unknown_release(f"vllm/vllm-openai:{asked}")
    assert remedy.startswith(near)
    assert "tools/" not in remedy
    assert ("ansible-galaxy" in remedy) == (asked in ("v0.99.0", "v9.9.9"))


@pytest.mark.parametrize("image", ["vllm/vllm-openai:latest", "vllm/vllm-openai:nightly"])
def test_a_tag_that_is_no_version_gets_the_newest_release(image):
    assert unknown_release(image) == ("names no release", "Write the tag of a release, e.g. vllm/vllm-openai:v0.33.0.")


@pytest.mark.parametrize(
    ("first", "second"), [("0.0.0.0", None), (None, "127.0.0.1"), ("::", "10.0.0.7"), ("10.0.0.7", "0.0.0.0")]
)
def test_one_port_on_addresses_that_exclude_each_other(first, second):
    errors, _text = faults_of(named("a", 8000, address=first), named("b", None, address=second))
    assert errors == [
        "gpu01: vllm_instances[b].port None is also that of instance 'a'. Give each instance its own port."
    ]


def test_one_port_on_two_addresses():
    pair = [named("a", 8000, address="10.0.0.7"), named("b", 8000, address="fd00::7")]
    plans = plan_instances(pair, hosts(2), CHECKPOINTS, ["gpu01"])
    assert [plan["endpoint"] for plan in plans] == ["http://10.0.0.7:8000", "http://[fd00::7]:8000"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_what_is_published_everywhere_is_reached_at_the_host(address):
    (plan,) = plan_instances([named("a", 8000, address=address)], hosts(2), CHECKPOINTS, ["gpu01"])
    assert plan["endpoint"] == f"http://{plan['hosts'][0]}:8000"


@pytest.mark.parametrize("given", [{"engine_args": {"api_key": "sk-1"}}, {"extra_args": ["--api-key=sk-1"]}])
def test_a_secret_among_the_arguments_is_refused_and_not_told(given):
    (planned,) = plan_instances([named("a", 8000, **given)], hosts(2), CHECKPOINTS, ["gpu01"])
    assert "set vllm_api_key instead" in str(planned["errors"])
    assert "sk-1" not in str(planned["errors"])

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from planning_examples import checkpoint, gpu, host

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._launch import all_reduce_run, docker_run
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import InstanceError
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.spans import (
    judge_spans,
    plan_host,
    span_of,
    together,
    with_warnings,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._preflight.table import table

PATH = "/models/m"
PAIRS = {"tensor_parallel_size": 2}


def network(number, **more):
    docker = {"name": "docker0", "addresses": [{"address": "172.17.0.1", "prefix": 16}], "up": True}
    card = {
        "name": "eth0",
        "addresses": [{"address": f"10.0.0.{number}", "prefix": 24}],
        "up": True,
        "speed_mbps": 25000,
    }
    return {"interfaces": [docker, card], "rdma": [], "listening": [], **more}


def instance(**more):
    return {"name": "big", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": PATH, "span": ["a", "b"], **more}


def fleet(instances, cards=("H100", "H100"), counts=(2, 2), model="Llama-3.1-70B", names=("a", "b")):
    """{host: what it tells}: instances are those of every host, or a list by host."""
    several = instances if isinstance(instances[0], list) else [instances] * len(names)
    return {
        name: {
            "instances": several[number],
            "facts": {
                "gpu_info": host(*(gpu(index, cards[number]) for index in range(counts[number])), name=name),
                "checkpoints": {PATH: checkpoint(model)},
                "plans": {},
                "receipts": {},
            },
            "network": network(number + 1),
        }
        for number, name in enumerate(names)
    }


def planned(members, groups=None, name="a"):
    return plan_host(name, together(name, members.get, groups or {}), groups or {})


def test_every_member_computes_the_same_plan():
    members = fleet([instance(workload={"context": 8192, "sequences": 8})])
    first, second = planned(members)[0], planned(members, name="b")[0]
    assert first == second
    assert first["verdict"] == "fits"
    assert (first["parallel"]["tensor_parallel_size"], first["parallel"]["pipeline_parallel_size"]) == (2, 2)
    assert list(first["devices"]) == ["a", "b"]


def test_the_layers_of_each_stage_stand_in_the_budget():
    (plan,) = planned(fleet([instance(engine_args=PAIRS)]))
    assert [(item["host"], item["stage"], item["layers"]) for item in plan["budget"]] == [
        ("a", 0, "0-39"),
        ("a", 0, "0-39"),
        ("b", 1, "40-79"),
        ("b", 1, "40-79"),
    ]


def test_layers_left_over_go_to_the_stages_before_the_last():
    three = instance(span=["a", "b", "c"], engine_args=PAIRS)
    (plan,) = planned(fleet([three], ("H100",) * 3, (2, 2, 2), names=("a", "b", "c")))
    assert [item["layers"] for item in plan["budget"][::2]] == ["0-26", "27-53", "54-79"]


def test_the_environment_divides_the_layers_and_the_fullest_stage_counts():
    pins = {**PAIRS, "pipeline_parallel_size": 2}
    (even,) = planned(fleet([instance(engine_args=pins)]))
    (plan,) = planned(fleet([instance(engine_args=pins, environment={"VLLM_PP_LAYER_PARTITION": "30,50"})]))
    first, last = plan["budget"][0], plan["budget"][-1]
    assert (first["layers"], last["layers"]) == ("0-29", "30-79")
    assert first["weights_gib"]["value"] < even["budget"][0]["weights_gib"]["value"] < last["weights_gib"]["value"]
    # 50 layers of 8 heads x 128 values x 2 (keys, values) x 2 bytes, halved by TP.
    bytes_per_token = 50 * 8 * 128 * 2 * 2 // 2
    assert plan["kv"]["tokens"] == pytest.approx(last["kv_pool_gib"]["value"] * 2**30 / bytes_per_token, rel=0.001)
    assert plan["kv"]["tokens"] < even["kv"]["tokens"]


@pytest.mark.parametrize(
    ("partition", "stages", "told"),
    [
        ("30,51", 2, "the model has 80 layers, not 81"),
        ("40,40", None, "it is for 2 stages; pin engine_args.pipeline_parallel_size to 2"),
        ("20,20,20,20", 2, "it is for 4 stages"),
    ],
)
def test_a_partition_that_vllm_refuses_is_refused(partition, stages, told):
    pins = {"pipeline_parallel_size": stages} if stages else {}
    entry = instance(engine_args=pins, environment={"VLLM_PP_LAYER_PARTITION": partition})
    (plan,) = planned(fleet([entry]))
    assert plan["verdict"] == "unsupported"
    assert any(told in need for need in plan["needs"])


def test_no_more_gpus_than_the_promise_needs():
    (plan,) = planned(fleet([instance(workload={"context": 4096, "sequences": 4})], model="Qwen3-8B"))
    assert (plan["parallel"]["tensor_parallel_size"], plan["parallel"]["pipeline_parallel_size"]) == (1, 2)


def test_one_stage_a_host_rather_than_fewer_gpus():
    (plan,) = planned(fleet([instance(workload={"context": 16384, "sequences": 64})], counts=(8, 8)))
    assert plan["verdict"] == "fits"
    assert (plan["parallel"]["tensor_parallel_size"], plan["parallel"]["pipeline_parallel_size"]) == (4, 2)


def test_gpus_that_do_not_divide_the_model_are_stages():
    # 40 heads and three GPUs a host: two of them would do, but not for this promise.
    workload = {"context": 32768, "sequences": 64}
    (plan,) = planned(fleet([instance(workload=workload)], counts=(3, 3), model="Qwen3-14B"))
    assert plan["verdict"] == "fits"
    assert (plan["parallel"]["tensor_parallel_size"], plan["parallel"]["pipeline_parallel_size"]) == (1, 6)


def test_a_pinned_tensor_size_stays_within_the_hosts_where_it_can():
    pins = {"tensor_parallel_size": 2}
    (plan,) = planned(fleet([instance(engine_args=pins)], model="tiny"))
    assert plan["parallel"]["pipeline_parallel_size"] == 2
    (plan,) = planned(fleet([instance(engine_args=pins)], counts=(1, 1), model="tiny"))
    assert plan["parallel"]["pipeline_parallel_size"] == 1


def test_unequal_hosts_are_refused_with_the_reason():
    (plan,) = planned(fleet([instance()], cards=("H100", "A100")))
    assert plan["verdict"] == "unsupported"
    assert "different cards (a has NVIDIA H100" in plan["needs"][0]


def test_engines_of_a_mixture_of_experts_are_divided_over_the_hosts():
    pins = {"data_parallel_size": 4, "enable_expert_parallel": True}
    (plan,) = planned(fleet([instance(engine_args=pins)], model="Mixtral-8x7B"))
    assert plan["parallel"]["data_parallel_size"] == 4
    first, second = (" ".join(docker_run(plan, "/env", "/cache", name)) for name in "ab")
    assert "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1" in first
    assert "--headless" not in first
    assert "--data-parallel-start-rank 2 --headless" in second
    assert "--enable-expert-parallel" in second and "--nnodes" not in second


def test_engines_that_the_hosts_cannot_share_are_refused():
    (plan,) = planned(fleet([instance(engine_args={"data_parallel_size": 3})], counts=(3, 3), model="tiny"))
    assert any("not divisible by 2 hosts" in need for need in plan["needs"])


def test_what_spans_is_taken_off_before_a_host_plans_its_own():
    own = {"name": "own", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": PATH, "port": 8001}
    members = fleet([[instance(), own], [instance()]])
    plans = planned(members)
    assert [plan["name"] for plan in plans] == ["big", "own"]
    assert plans[1]["verdict"] == "does_not_fit"
    assert [plan["name"] for plan in planned(members, name="b")] == ["big"]


def test_engines_that_chain_hosts_are_planned_together():
    left, right = instance(name="left"), instance(name="right", span=["b", "c"], port=8001)
    members = fleet([[left], [left, right], [right]], ("H100",) * 3, (4, 4, 4), "Qwen3-8B", ("a", "b", "c"))
    seen = {name: planned(members, name=name) for name in "abc"}
    assert seen["a"] == [seen["b"][0]]
    assert seen["c"] == [seen["b"][1]]


def test_a_group_is_its_hosts_in_the_order_of_the_inventory():
    assert span_of(instance(span="pair"), {"pair": ["b", "a"]}) == ["b", "a"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"span": "nowhere"}, "span 'nowhere' is no group of the inventory"),
        ({"span": ["a", "a"]}, "names a host twice"),
        ({"span": ["a"]}, "is one host"),
        ({"span": 7}, "is no list of hosts"),
        ({"span": ["b", "c"]}, "does not name a, which has the instance too"),
        ({"span": ["a", "z"]}, "names z, which is not planned in this run"),
        ({"engine_args": {"node-rank": 1}}, "engine_args.node_rank 1 follows from span"),
        ({"launch": "mpi"}, "launch 'mpi' is not known"),
        ({"launch": "ray"}, "needs Ray, which the image of vLLM v0.32.0 does not have"),
        ({"launch": "multiprocessing", "image": "vllm/vllm-openai:v0.10.2"}, "needs --nnodes"),
        ({"span_interface": "eth7"}, "is not there, or not up, on a"),
        ({"replica_of": "big"}, "and span exclude each other"),
        ({"extra_args": ["--node-rank=1"]}, "extra_args '--node-rank=1' follows from span"),
        ({"extra_args": ["--master-port", "31000"]}, "Set engine_args.master_port"),
        ({"engine_args": {"master_port": 8000}}, "port 8000 gives it 8000 as its port, which big (master_port) has"),
        (
            {"launch": "ray", "image": "vllm/vllm-openai:v0.9.0", "engine_args": {"data_parallel_size": 2}},
            "launch 'ray' is not for data parallel engines in vLLM v0.9.0",
        ),
        ({"environment": {"VLLM_PP_LAYER_PARTITION": "a,b"}}, "is not the number of layers of each stage"),
    ],
)
def test_what_is_wrong_is_said(entry, told):
    with pytest.raises(InstanceError, match=".*") as error:
        planned(fleet([instance(**entry)]))
    assert told in "\n".join(map(str, error.value.errors))


def test_engines_of_one_host_never_meet_on_one_port():
    members = fleet([instance(), instance(name="other", port=8500)], model="Qwen3-8B")
    with pytest.raises(
        InstanceError, match=r"a: .*port 8500 gives it 29000 as its master_port, which big .master_port"
    ):
        planned(members)
    own = {"name": "own", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": PATH, "port": 29001}
    with pytest.raises(InstanceError, match=r"b: .*port 29001 gives it 29001 as its port, which big .watch_port. has"):
        planned(fleet([[instance()], [instance(), own]], model="Qwen3-8B"))


def test_endpoints_of_two_pairs_are_each_others_business():
    # Rank 0 alone serves: its port is free on the others.
    own = {"name": "own", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": PATH, "port": 29000}
    plans = planned(fleet([[instance()], [instance(), own]], model="Qwen3-8B"), name="b")
    assert [plan["name"] for plan in plans] == ["big", "own"]


def test_members_whose_entries_differ_are_refused():
    members = fleet([[instance(port=8000)], [instance(port=8001)]])
    with pytest.raises(InstanceError, match="is 8001 on b"):
        planned(members)


def test_a_member_without_the_instance_is_named():
    members = fleet([[instance()], []])
    with pytest.raises(InstanceError, match="names b, which has no such instance"):
        planned(members)


# --- launch -----------------------------------------------------------------------------------------------------------


def test_hosts_are_connected_by_multiprocessing_where_the_release_can():
    (plan,) = planned(fleet([instance()]))
    first, second = (" ".join(docker_run(plan, "/env", "/cache", name)) for name in "ab")
    assert "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29000" in first
    assert "--node-rank 1" in second and second.endswith("--headless")
    assert "--network host" in first and "--publish" not in first
    assert "--env VLLM_HOST_IP=10.0.0.2" in second
    assert "/dev/infiniband" not in first


@pytest.mark.parametrize("release", ["0.11.1", "0.13.0"])
def test_members_of_images_that_start_no_vllm_serve_start_it(release):
    (plan,) = planned(fleet([instance(image=f"vllm/vllm-openai:v{release}")]))
    for name in "ab":
        command = docker_run(plan, "/env", "/cache", name)
        after = command[command.index("--entrypoint") :]
        assert after[1:5] == ["vllm", f"vllm/vllm-openai:v{release}", "serve", "/models/m"]
    assert command[-1] == "--headless"


@pytest.mark.parametrize("release", ["0.9.0", "0.10.2", "0.32.0"])
def test_data_parallel_engines_over_hosts_in_every_release(release):
    entry = instance(image=f"vllm/vllm-openai:v{release}", engine_args={"data_parallel_size": 2})
    (plan,) = planned(fleet([entry], model="Mixtral-8x7B"))
    command = " ".join(docker_run(plan, "/env", "/cache", "b"))
    assert plan["launch"]["method"] == "multiprocessing"
    assert "--data-parallel-size 2 " in command and "--data-parallel-start-rank 1 --headless" in command


def test_ray_places_data_parallel_engines():
    entry = instance(image="vllm/vllm-openai:v0.17.1", launch="ray", engine_args={"data_parallel_size": 2})
    (plan,) = planned(fleet([entry], model="Mixtral-8x7B"))
    head = " ".join(docker_run(plan, "/env", "/cache", "a"))
    assert "--data-parallel-backend ray --data-parallel-size-local 1 --data-parallel-address 10.0.0.1" in head


def test_an_image_of_ones_own_may_have_ray():
    (plan,) = planned(fleet([instance(launch="ray", image="registry.local/vllm-ray:v0.32.0")]))
    assert plan["launch"]["method"] == "ray" and "your own" in plan["launch"]["why"]
    with pytest.raises(InstanceError, match="needs Ray, which the image of vLLM v0.32.0 does not have"):
        planned(fleet([instance(launch="ray", image="mirror.local/vllm/vllm-openai:v0.32.0")]))


def test_ray_is_told_an_ipv6_address_in_brackets():
    members = fleet([instance(image="vllm/vllm-openai:v0.10.2")])
    for number, member in enumerate(members.values(), 1):
        member["network"]["interfaces"][1]["addresses"] = [{"address": f"fd00::{number}", "prefix": 64}]
    (plan,) = planned(members)
    assert "--address [fd00::1]:29000" in docker_run(plan, "/env", "/cache", "b")[-2]


def test_older_releases_are_connected_by_ray():
    (plan,) = planned(fleet([instance(image="vllm/vllm-openai:v0.10.2")]))
    assert plan["launch"]["method"] == "ray"
    assert "has no --nnodes" in plan["launch"]["why"]
    head, worker = (docker_run(plan, "/env", "/cache", name) for name in "ab")
    assert "ray start --head" in head[head.index("-c") + 1]
    assert head[head.index("-c") + 2 : head.index("-c") + 6] == ["ray", "vllm", "serve", "/models/m"]
    assert head[-2:] == ["--distributed-executor-backend", "ray"]
    assert "ray start --block" in worker[-2] and "10.0.0.1:29000" in worker[-2]


def test_pins_of_the_launch_are_obeyed():
    pins = {"master_addr": "rank0.example", "master_port": 31000}
    (plan,) = planned(fleet([instance(engine_args=pins)]))
    command = " ".join(docker_run(plan, "/env", "/cache", "b"))
    assert command.count("--master-addr rank0.example --master-port 31000") == 1


def test_rdma_is_used_where_every_member_has_it():
    members = fleet([instance()])
    port = {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}
    for member in members.values():
        member["network"]["rdma"] = [port, {**port, "device": "mlx5_1", "state": "DOWN"}]
    (plan,) = planned(members)
    command = " ".join(docker_run(plan, "/env", "/cache", "a"))
    assert "--device /dev/infiniband --ulimit memlock=-1:-1" in command
    assert "--env NCCL_IB_HCA==mlx5_0:1" in command and "NCCL_IB_DISABLE" not in command
    members["b"]["network"]["rdma"] = []
    (plan,) = planned(members)
    assert "--env NCCL_IB_DISABLE=1" in " ".join(docker_run(plan, "/env", "/cache", "a"))


def test_only_rdma_ports_that_reach_each_other_are_used():
    infiniband = {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}
    roce = {"device": "mlx5_2", "port": 1, "state": "ACTIVE", "link_layer": "Ethernet"}
    efa = {"device": "efa_0", "port": 1, "state": "ACTIVE", "link_layer": "Unspecified"}
    members = fleet([instance()])

    def told(first, second):
        members["a"]["network"]["rdma"], members["b"]["network"]["rdma"] = first, second
        (plan,) = planned(members)
        return [member["rdma"] for member in plan["launch"]["members"]], judged(members)[0].get("rdma", {}).get("what")

    assert told([infiniband, roce], [roce, infiniband]) == ([["mlx5_0:1"]] * 2, None)
    assert told([infiniband, roce], [roce]) == ([["mlx5_2:1"]] * 2, None)
    devices, warning = told([infiniband], [roce])
    assert devices == [[], []] and "different kinds (a: InfiniBand; b: Ethernet)" in warning
    assert told([efa], [efa]) == ([[], []], None)
    assert "no active InfiniBand or RoCE device on b" in told([roce], [efa])[1]


def test_variables_of_the_instance_win():
    (plan,) = planned(fleet([instance(environment={"NCCL_SOCKET_IFNAME": "ib0"})]))
    command = docker_run(plan, "/env", "/cache", "a")
    assert [word for word in command if word.startswith("NCCL_SOCKET_IFNAME")] == ["NCCL_SOCKET_IFNAME=ib0"]


def test_all_ranks_take_part_in_the_all_reduce():
    (plan,) = planned(fleet([instance(engine_args=PAIRS)]))
    command = " ".join(all_reduce_run(plan, "/run/x", "b"))
    assert "--entrypoint python3 vllm/vllm-openai:v0.32.0 -m torch.distributed.run --nnodes 2 --node-rank 1" in command
    assert "--nproc-per-node 2 --master-addr 10.0.0.1 --master-port 29000 /probe/all_reduce.py" in command


def test_a_plan_that_stays_brings_no_decision_twice():
    members = fleet([instance()])
    (plan,) = planned(members)
    for member in members.values():
        member["facts"]["plans"] = {"big": plan}
    assert planned(members) == [plan]


# --- checks between the members ------------------------------------------------------------------------------------


def judged(members, reach=None):
    plans = planned(members)
    found = judge_spans(plans, members, reach or {})
    return {check["check"]: check for check in found["big"] if check["status"] != "ok"}, with_warnings(plans, found)


def test_equal_hosts_are_fine():
    members = fleet([instance()])
    for member in members.values():
        member["network"]["clock"] = {"offset_seconds": 0.1, "uncertainty_seconds": 0.5}
    assert judged(members)[0] == {}


def test_drivers_of_two_branches():
    members = fleet([instance()])
    members["b"]["facts"]["gpu_info"]["driver_version"] = "550.54.15"
    checks, plans = judged(members)
    assert checks["driver"]["status"] == "failed"
    assert "b: 550.54.15" in checks["driver"]["what"]
    assert any("different branches" in warning for warning in plans[0]["warnings"])


def test_clocks_that_are_apart_by_more_than_is_known():
    members = fleet([instance()])
    members["a"]["network"]["clock"] = {"offset_seconds": 0.0, "uncertainty_seconds": 1.0}
    members["b"]["network"]["clock"] = {"offset_seconds": 6.5, "uncertainty_seconds": 1.0}
    assert "clock" not in judged(members)[0]
    members["b"]["network"]["clock"]["offset_seconds"] = 60.0
    assert "at least 58 s apart" in judged(members)[0]["clock"]["what"]


def test_a_slow_network_is_a_warning():
    members = fleet([instance()])
    for member in members.values():
        member["network"]["interfaces"][1]["speed_mbps"] = 1000
    assert judged(members)[0]["network"]["status"] == "warning"


def test_a_port_that_somebody_has():
    members = fleet([instance()])
    members["a"]["network"]["listening"] = [{"port": 29000, "process": "python", "pid": 7, "ours": False}]
    assert "the port 29000 (master_port) is taken by python (7)" in judged(members)[0]["port"]["what"]
    members["a"]["network"]["listening"][0]["ours"] = True
    assert "port" not in judged(members)[0]


def test_a_port_that_cannot_be_reached_and_a_name_that_is_wrong():
    reach = {
        "b": {
            "reached": [{"host": "a", "address": "10.0.0.1", "port": 29000, "error": "no answer within 5 s"}],
            "names": [{"name": "rank0", "addresses": ["127.0.1.1"], "error": None}],
        }
    }
    checks, _plans = judged(fleet([instance()]), reach)
    assert "a (10.0.0.1) does not answer on port 29000: no answer within 5 s" in checks["reach"]["what"]
    assert "rank0 is 127.0.1.1 there, not 10.0.0.1 of a" in checks["name"]["what"]


def test_the_next_command_is_for_the_hosts_that_it_can_be_run_on():
    reach = {"b": {"reached": [{"host": "a", "address": "10.0.0.1", "port": 29000, "error": "refused"}]}}
    members = fleet([instance()])
    found = judge_spans(planned(members), members, reach)["big"]
    assert table(found, "big").splitlines()[-1] == "Next, on b: curl --verbose telnet://10.0.0.1:29000"
    members["b"]["facts"]["gpu_info"]["driver_version"] = "550.54.15"
    found = judge_spans(planned(members), members, {})["big"]
    assert table(found, "big").splitlines()[-1].startswith("Next, on a, b: nvidia-smi")


def test_tensor_parallelism_over_pcie_is_a_warning():
    members = fleet([instance(engine_args=PAIRS)])
    members["b"]["facts"]["gpu_info"]["links"] = [["X", "SYS"], ["SYS", "X"]]
    assert "connected by SYS" in judged(members)[0]["links"]["what"]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a plan becomes a command line. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ._catalogue import serve_args
from ._catalogue.serve_args import plan_release

# Characters that systemd does not interpret in an unquoted word of ExecStart (systemd.service(5), "COMMAND LINES").
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@")


# vLLM's workers and NCCL pass tensors through /dev/shm, of which Docker gives a container 64 MiB; vLLM 0.32.0 asks for
# 160 MiB at start. It is a limit, not a reservation: what is not used costs nothing.
_SHARED_MEMORY = "16g"
# An engine that could ask the internet for anything would fail where there is none, at the next restart at the latest.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
# Where the container has the host's folder for what vLLM compiles: a place that does not depend on the image's user.
_CACHE = "/var/cache/vllm"


# What the containers of Ray's hosts do before they run what follows: the head waits until all nodes are there, for vLLM
# takes what is there when it starts. A worker ends with its head, and with it its container.
_RAY_HEAD = """
ray start --head --disable-usage-stats --include-dashboard=false --node-ip-address "$VLLM_HOST_IP" --port {port} &&
python3 -c '
import ray, time
ray.init(address="auto", logging_level="ERROR")
deadline = time.monotonic() + 600
while sum(node["Alive"] for node in ray.nodes()) < {hosts}:
    if time.monotonic() > deadline:
        raise SystemExit("Ray: not all of the {hosts} hosts came within 600 s")
    time.sleep(2)
' && exec "$@"
""".strip()
_RAY_WORKER = """
timeout 600 bash -c "until ray health-check --address {address}:{port}; do sleep 2; done" &&
exec ray start --block --disable-usage-stats --node-ip-address "$VLLM_HOST_IP" --address {address}:{port}
""".strip()


class HostProblem(ValueError):
    """A host that the plan has no command for: none of its hosts, or one whose address is not known yet."""


def docker_run(
    plan: Mapping[str, Any], environment_file: str, cache_directory: str, host: str | None = None, image: str = ""
) -> list[str]:
    """Returns the argv of `docker run` for the engine of a plan on one host.

    environment_file: file on the host with the secret variables. cache_directory: folder on the host for what the
    engine compiles. host: which of the plan's hosts; needed where there are several. image: what Docker on the host
    calls the image, where that is not the plan's name of it: it does not know digests of images from archives.
    Raises ArgumentProblem for arguments that the release does not take, HostProblem for a host that is not the plan's.
    """
    model = f"/models/{PurePosixPath(plan['checkpoint']).name}"
    member = _member(plan, host)
    command = _container(plan, member, f"vllm-{plan['name']}")
    command += ["--volume", f"{plan['checkpoint']}:{model}:ro"]
    command += ["--volume", f"{cache_directory}:{_CACHE}"]
    command += ["--env-file", environment_file]
    command += _environment(plan, member)
    image = image or plan["image"]
    if member and plan["launch"]["method"] == "ray":
        return [*command, "--entrypoint", "/bin/bash", image, *_ray_command(plan, member, model)]
    if member and plan_release(dict(plan)).entrypoint != "serve":
        # Only `vllm serve` knows --headless; images up to v0.13.0 start something else by themselves.
        return [*command, "--entrypoint", "vllm", image, "serve", *_engine_command(plan, member, model, "serve")]
    return [*command, image, *_engine_command(plan, member, model)]


def all_reduce_run(plan: Mapping[str, Any], folder: str, host: str, image: str = "") -> list[str]:
    """Returns the argv of `docker run` for one host's part of an all-reduce over all GPUs of an engine over several.

    folder: on the host, with all_reduce.py in it. image: as above. Raises HostProblem for a host that is not one of it.
    """
    member = _member(plan, host)
    if member is None:
        raise HostProblem(f"{plan['name']} does not span hosts")
    launch, devices = plan["launch"], _devices(plan, member)
    command = [*_container(plan, member, f"vllm-{plan['name']}-all-reduce"), "--rm", "--volume", f"{folder}:/probe:ro"]
    command += [
        *_environment(plan, member),
        "--entrypoint",
        "python3",
        image or plan["image"],
        "-m",
        "torch.distributed.run",
    ]
    command += ["--nnodes", str(len(launch["members"])), "--node-rank", str(member["rank"])]
    command += ["--nproc-per-node", str(len(devices)), "--master-addr", str(launch["master_addr"])]
    return [*command, "--master-port", str(launch["master_port"]), "/probe/all_reduce.py"]


def _container(plan: Mapping[str, Any], member: Mapping[str, Any] | None, name: str) -> list[str]:
    """The container of an engine on its GPUs, without what is mounted and what it runs."""
    # The container stays until its end was looked at: archive.sh reads why it ended and removes it.
    command = ["/usr/bin/docker", "run", "--name", name]
    # Nothing but the image that was staged and proven ever starts, also where a registry could be reached.
    command += ["--pull", "never"]
    # The journal of the unit keeps the log; a second copy in Docker's json-file would grow without limit.
    command += ["--log-driver", "none"]
    command += ["--runtime", "nvidia", "--gpus", f'"device={",".join(_devices(plan, member))}"']
    command += ["--shm-size", _SHARED_MEMORY, "--security-opt", "no-new-privileges"]
    # Of Docker's default capabilities the engine needs one: to read a checkpoint that belongs to another user.
    command += ["--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE"]
    command += _network(plan, member)
    return command


def _environment(plan: Mapping[str, Any], member: Mapping[str, Any] | None) -> list[str]:
    """Variables of the members' network, of the instance, and those that keep it offline."""
    values = {**_member_environment(member), **plan["environment"], **_OFFLINE, "VLLM_CACHE_ROOT": _CACHE}
    return [word for variable, value in sorted(values.items()) for word in ("--env", f"{variable}={value}")]


def _member(plan: Mapping[str, Any], host: str | None) -> Mapping[str, Any] | None:
    """How the host takes part in an engine over several, with its rank; None for an engine on one host."""
    launch = plan.get("launch")
    if not launch:
        return None
    hosts = [member["host"] for member in launch["members"]]
    if host not in hosts:
        raise HostProblem(f"{host!r} is none of its hosts {', '.join(hosts)}")
    member = launch["members"][hosts.index(host)]
    if not member["address"]:
        raise HostProblem(f"the address of {host} is not known: the plan was made without facts of its network")
    return {**member, "rank": hosts.index(host)}


def _member_environment(member: Mapping[str, Any] | None) -> Mapping[str, str]:
    return member["environment"] if member else {}


def _devices(plan: Mapping[str, Any], member: Mapping[str, Any] | None) -> list[str]:
    """The UUIDs of the plan's GPUs on the host: an index may mean another card after a reboot."""
    if member:
        return list(plan["devices"][member["host"]])
    (devices,) = plan["devices"].values()
    return list(devices)


def _network(plan: Mapping[str, Any], member: Mapping[str, Any] | None) -> list[str]:
    """The endpoint's port alone; the host's network where members talk to each other on ports that NCCL chooses."""
    if member is None:
        return ["--publish", f"{plan['address']}:{plan['port']}:{plan['port']}"]
    if not member["rdma"]:
        return ["--network", "host"]
    # RDMA sends from memory that is pinned, as much as it likes.
    return ["--network", "host", "--device", "/dev/infiniband", "--ulimit", "memlock=-1:-1"]


def _engine_command(
    plan: Mapping[str, Any], member: Mapping[str, Any] | None, model: str, entrypoint: str | None = None
) -> list[str]:
    """What follows the image: the model, how it is served, and the planned arguments as the release takes them."""
    # Inside a container of its own network it listens everywhere: where that is published is Docker's matter.
    served = [
        {"name": "served_model_name", "value": plan["served_model_name"]},
        {"name": "host", "value": plan["address"] if member else "0.0.0.0"},
        {"name": "port", "value": plan["port"]},
    ]
    complete = {**plan, "arguments": [*served, *plan["arguments"], *_launch_arguments(plan, member)]}
    return serve_args(complete, model=model, force=plan.get("force_args") or (), entrypoint=entrypoint)


def _launch_arguments(plan: Mapping[str, Any], member: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The arguments by which the members find each other, in the words of vLLM."""
    if member is None:
        return []
    launch, rank = plan["launch"], member["rank"]
    if launch["method"] == "ray":
        values: dict[str, Any] = {"distributed_executor_backend": "ray"}
        if launch["engines_per_host"]:
            # Ray places the engines: so many on the head, the others where it finds GPUs.
            values |= {
                "data_parallel_backend": "ray",
                "data_parallel_size_local": launch["engines_per_host"],
                "data_parallel_address": launch["master_addr"],
            }
    elif launch["engines_per_host"]:
        values = {
            "data_parallel_size_local": launch["engines_per_host"],
            "data_parallel_address": launch["master_addr"],
            "data_parallel_rpc_port": launch["master_port"],
        }
        values |= {"data_parallel_start_rank": rank * launch["engines_per_host"], "headless": True} if rank else {}
    else:
        values = {
            "nnodes": len(launch["members"]),
            "node_rank": rank,
            "master_addr": launch["master_addr"],
            "master_port": launch["master_port"],
        }
        values |= {"headless": True} if rank else {}
    return [{"name": name, "value": value} for name, value in values.items()]


def _ray_command(plan: Mapping[str, Any], member: Mapping[str, Any], model: str) -> list[str]:
    """Words for bash: a script, a name for it, and on the head what it runs in the end."""
    launch = plan["launch"]
    address = str(launch["master_addr"])
    address = f"[{address}]" if ":" in address else address
    values = {"port": launch["master_port"], "address": address, "hosts": len(launch["members"])}
    if member["rank"]:
        return ["-c", _RAY_WORKER.format(**values), "ray"]
    return ["-c", _RAY_HEAD.format(**values), "ray", "vllm", "serve", *_engine_command(plan, member, model, "serve")]


def systemd_command(argv: list[str]) -> str:
    """Returns argv as the value of ExecStart, one option a line: a person can read it and a diff shows one line.

    Source of the quoting: systemd.service(5): words in double quotes, backslash escapes, `%%` and `$$` for the signs.
    """
    lines: list[list[str]] = [[]]
    for word in argv:
        # A line is an option with its value, or what stands by itself (the program with its subcommand, the image).
        option_has_value = lines[-1] and lines[-1][0].startswith("-") and len(lines[-1]) == 2
        if word.startswith("-") or option_has_value:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(map(_quote, line)) for line in lines)


def _quote(word: str) -> str:
    """Returns one word as systemd takes it literally."""
    if word and set(word) <= _PLAIN:
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'

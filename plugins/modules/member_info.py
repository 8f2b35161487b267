#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: member_info
short_description: Reads what a host needs to be a member of a vLLM engine over several hosts
description:
  - Reads the network of the host (interfaces with addresses and speed, InfiniBand and RoCE ports), who listens on which
    port, how much memory Docker may lock, and how far the clock is from that of the controller.
  - Listens for a while on the ports that the engine will need, in a process that ends by itself, so that the other
    hosts can try to reach them. Asked a second time, with O(peers_fact), it tries to reach theirs.
  - Changes nothing.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  instances:
    description:
      - The instances of the host, as the variable C(vllm_instances) holds them. Those with C(span) count.
    type: list
    elements: dict
    default: []
  peers_fact:
    description:
      - Name of a fact that every member holds, with what this module returned there in C(network) and its instances in
        C(instances). If given, the other members are tried, and nothing else is read.
    type: str
  names:
    description: Names of the instances. Set by the action plugin.
    type: list
    elements: str
    default: []
  listen:
    description: Ports to listen on. Set by the action plugin.
    type: list
    elements: int
    default: []
  peers:
    description: How many hosts will connect to each of O(listen). Set by the action plugin.
    type: int
    default: 0
  listen_seconds:
    description: Seconds to listen, at most. It ends when all other members were there.
    type: int
    default: 60
  reach:
    description: What to connect to. Set by the action plugin.
    type: list
    elements: dict
    default: []
  resolve:
    description: Names to look up. Set by the action plugin.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Read the network of the members
  gpufleet.vllm.member_info:
    instances: "{{ vllm_instances }}"
  register: network

- name: Share it
  ansible.builtin.set_fact:
    my_member: "{{ {'instances': vllm_instances, 'network': network} }}"

- name: Try whether the members reach each other
  gpufleet.vllm.member_info:
    instances: "{{ vllm_instances }}"
    peers_fact: my_member
"""

RETURN = r"""
interfaces:
  description: Interfaces with C(name), C(addresses) (each C(address), C(prefix)), C(speed_mbps), C(up) and C(mtu).
  returned: without O(peers_fact)
  type: list
  elements: dict
default_interface:
  description: The interface of the default route.
  returned: without O(peers_fact)
  type: str
rdma:
  description: InfiniBand and RoCE ports with C(device), C(port), C(state), C(link_layer) and C(rate).
  returned: without O(peers_fact)
  type: list
  elements: dict
memlock_kib:
  description: KiB of memory that Docker may lock; V(-1) without a limit.
  returned: without O(peers_fact)
  type: int
listening:
  description: Who listens where; C(ours) where it is an engine of these instances, or its watcher.
  returned: without O(peers_fact)
  type: list
  elements: dict
listener:
  description: The C(ports) that are listened on for a while, and the C(token) that is told there.
  returned: without O(peers_fact)
  type: dict
clock:
  description: How far the clock is ahead of the controller's, C(offset_seconds), known to C(uncertainty_seconds).
  returned: without O(peers_fact)
  type: dict
reached:
  description: The other members by instance, each C(host), C(address) and C(port) with C(error), null if it answered.
  returned: with O(peers_fact)
  type: list
  elements: dict
names:
  description: Names that the members must know, with the C(addresses) that they have here, or C(error).
  returned: with O(peers_fact)
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _member_facts as facts


def read(module):
    """What the host tells of itself."""
    ip = module.get_bin_path("ip", required=True, opt_dirs=["/sbin", "/usr/sbin"])
    _rc, addresses, _err = module.run_command([ip, "-json", "address"])
    _rc, routes, _err = module.run_command([ip, "-json", "route", "show", "default"])
    return {
        "interfaces": facts.interfaces(addresses),
        "default_interface": facts.default_interface(routes),
        "rdma": facts.rdma_ports(),
        "memlock_kib": facts.docker_memlock_kib(),
        "listening": facts.taken_ports(module.params["names"], containers(module)),
        "listener": facts.listen(*(module.params[name] for name in ("listen", "peers", "listen_seconds"))),
    }


def containers(module):
    """{container id: name}; none where Docker is not there."""
    docker = module.get_bin_path("docker")
    if not docker:
        return {}
    _rc, out, _err = module.run_command([docker, "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"])
    return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "default": []},
            "peers_fact": {"type": "str"},
            "names": {"type": "list", "elements": "str", "default": []},
            "listen": {"type": "list", "elements": "int", "default": []},
            "peers": {"type": "int", "default": 0},
            "listen_seconds": {"type": "int", "default": 60},
            "reach": {"type": "list", "elements": "dict", "default": []},
            "resolve": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    if module.params["peers_fact"]:
        told = {
            "reached": facts.reach(module.params["reach"]),
            "names": facts.resolve(module.params["resolve"]),
        }
    else:
        told = read(module)
    module.exit_json(changed=False, now=time.time(), **told)


if __name__ == "__main__":
    main()

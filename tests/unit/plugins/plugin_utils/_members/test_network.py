# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._members import MemberError, choose_network, ports_of


def facts(*interfaces, default=None):
    return {
        "interfaces": [
            {"name": name, "addresses": [{"address": address, "prefix": prefix}], "speed_mbps": speed, "up": True}
            for name, address, prefix, speed in interfaces
        ],
        "default_interface": default,
    }


def chosen(*hosts, wanted=None):
    told = {f"h{number}": host for number, host in enumerate(hosts)}
    members, why = choose_network(told, list(told), wanted)
    return [(member["interface"], member["address"]) for member in members], why


def test_the_fastest_network_that_all_share():
    first = facts(("eth0", "10.0.0.1", 24, 1000), ("eth1", "10.1.0.1", 16, 100000))
    second = facts(("eno1", "10.0.0.2", 24, 1000), ("ens2", "10.1.7.2", 16, 100000))
    assert chosen(first, second) == (
        [("eth1", "10.1.0.1"), ("ens2", "10.1.7.2")],
        "the fastest of the networks that all hosts share",
    )


def test_a_network_within_each_host_is_none_between_them():
    first = facts(("br0", "192.168.122.1", 24, 10000), ("eth0", "10.0.0.1", 24, 1000))
    second = facts(("br0", "192.168.122.1", 24, 10000), ("eth0", "10.0.0.2", 24, 1000))
    assert chosen(first, second)[0] == [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2")]


def test_bridges_of_containers_are_left_out_even_where_their_addresses_differ():
    first = facts(("docker0", "172.17.0.1", 16, 10000), ("eth0", "10.0.0.1", 24, 1000))
    second = facts(("docker0", "172.17.0.2", 16, 10000), ("eth0", "10.0.0.2", 24, 1000))
    assert chosen(first, second)[0][0][0] == "eth0"


def test_what_is_wanted_by_name_or_by_network():
    first = facts(("eth0", "10.0.0.1", 24, 1000), ("ib0", "10.9.0.1", 24, 200000))
    second = facts(("eth0", "10.0.0.2", 24, 1000), ("ib0", "10.9.0.2", 24, 200000))
    assert chosen(first, second, wanted="eth0")[0][1] == ("eth0", "10.0.0.2")
    assert chosen(first, second, wanted="10.9.0.0/24")[0][1] == ("ib0", "10.9.0.2")
    with pytest.raises(MemberError, match="neither an interface nor a network"):
        chosen(first, second, wanted="10.9.0.0/99")
    with pytest.raises(MemberError, match=r"eth5.* on h0\. There are eth0 \(10.0.0.1\)"):
        chosen(first, second, wanted="eth5")


def test_routed_addresses_go_the_default_way():
    first, second = (facts(("ens4", f"10.128.0.{n}", 32, None), default="ens4") for n in (2, 3))
    assert chosen(first, second)[0] == [("ens4", "10.128.0.2"), ("ens4", "10.128.0.3")]


def test_hosts_without_a_network_in_common_are_refused():
    with pytest.raises(MemberError, match="without a network in common"):
        chosen(facts(("eth0", "10.0.0.1", 24, 1000)), facts(("eth0", "10.0.1.1", 24, 1000)))


def test_endpoints_of_one_host_have_ports_of_their_own():
    ports = [port for number in range(8000, 8020) for port in ports_of(number).values()]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768
    assert ports_of(8000, 31000)["master_port"] == 31000

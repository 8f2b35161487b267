# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role vllm_image on two simulated hosts that run already (playbooks/lab_up.yml), with a registry on each of them.

GPUFLEET_INVENTORY names the inventory (inventories/lab by default), of which the first two simulated hosts are used;
without them the tests are skipped. What they change there they change back. About eight minutes on two busy
cores.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from registry import Image, digest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
INVENTORY = os.environ.get("GPUFLEET_INVENTORY", f"{REPOSITORY}/inventories/lab")
ENVIRONMENT = {**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg", "PYTHONUNBUFFERED": "1"}

NAME = "gpufleet-test/engine:v1"
PORT = 5055
MIRROR = f"127.0.0.1:{PORT}"
FIRST, SECOND = Image("1"), Image("2")
PINNED = f"{NAME}@{digest(FIRST.manifest)}"
FOLDER = "/var/tmp/gpufleet-registry"
CLEAN = (
    "docker image ls --format '{{.Repository}}:{{.Tag}}' | grep gpufleet-test/ | grep -v '<none>' | "
    "xargs --no-run-if-empty docker rmi --force; docker image prune --force; "
    "rm -rf /var/lib/vllm/images/gpufleet-test* /var/lib/vllm/jobs/image-gpufleet-test* /var/cache/vllm/images/* "
    "/etc/vllm/gpufleet-test ~/.docker/config.json"
)
LOSE_CONNECTIONS = (
    "--become",
    "--module-name",
    "ansible.builtin.shell",
    "--args",
    "kill $(pgrep --parent $(systemctl show --property MainPID --value ssh))",
)
DROP_IN = "/run/systemd/system/docker.service.d"
SMALL_DISK = f"""
mkdir -p /var/lib/docker-small {DROP_IN} && mount -t tmpfs -o size=14m tmpfs /var/lib/docker-small
cat > {DROP_IN}/small.conf <<END
[Service]
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// --data-root /var/lib/docker-small
END
systemctl daemon-reload && systemctl restart docker
"""
USUAL_DISK = f"""
rm -r {DROP_IN} && systemctl daemon-reload && systemctl restart docker
umount /var/lib/docker-small && rmdir /var/lib/docker-small
"""


def run(*command):
    return subprocess.run(
        command, cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )


def shell(hosts, command):
    """The output of a command on the hosts."""
    asked = json.dumps({"cmd": "{% raw %}" + command + "{% endraw %}"})
    arguments = ("--inventory", INVENTORY, "--become", "--module-name", "ansible.builtin.shell", "--args", asked)
    result = run("ansible", ",".join(hosts), *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def playbook(hosts, name, source, *arguments, **variables):
    variables = {"vllm_image_name": name, "vllm_image_source": source, **variables}
    limit = ("--inventory", INVENTORY, "--limit", ",".join(hosts))
    return ("ansible-playbook", *limit, f"{HERE}/image.yml", "--extra-vars", json.dumps(variables), *arguments)


def have(hosts, name, source, *arguments, **variables):
    """(exit code, changes on all hosts, output with single blanks) of the role."""
    result = run(*playbook(hosts, name, source, *arguments, **variables))
    changes = sum(int(count) for count in re.findall(r"changed=(\d+)", result.stdout))
    return result.returncode, changes, " ".join((result.stdout + result.stderr).split())


def image_id(host, name=NAME):
    """ID of what a name means on a host; None if nothing."""
    found = re.search(
        r"^sha256:\w+", shell([host], f"docker image inspect --format '{{{{.Id}}}}' {name} || true"), re.MULTILINE
    )
    return found.group() if found else None


def serve(hosts, and_then="true", **settings):
    """Lets the registry of each host obey these settings."""
    shell(hosts, f"echo '{json.dumps(settings)}' > {FOLDER}/settings.json; {and_then}")


@pytest.fixture(name="hosts", scope="module")
def find_hosts():
    listed = run("ansible-inventory", "--inventory", INVENTORY, "--list")
    known = json.loads(listed.stdout)["_meta"]["hostvars"] if listed.returncode == 0 else {}
    simulated = [(name, variables) for name, variables in known.items() if "lab_profile" in variables][:2]
    try:
        for _name, variables in simulated:
            socket.create_connection((variables["ansible_host"], variables["ansible_port"]), timeout=2).close()
    except OSError:
        simulated = []
    if len(simulated) < 2:
        print(f"skipped: {INVENTORY} has no two simulated hosts that answer; playbooks/lab_up.yml starts them")
        pytest.skip("no two simulated hosts answer")
    hosts = [name for name, _variables in simulated]
    shell(hosts, f"mkdir -p {FOLDER}")
    copied = ("--module-name", "ansible.builtin.copy", "--args", f"src={HERE}/registry.py dest={FOLDER}/registry.py")
    assert run("ansible", ",".join(hosts), "--inventory", INVENTORY, "--become", *copied).returncode == 0
    serve(hosts)
    command = f"python3 {FOLDER}/registry.py {PORT} {FOLDER}/settings.json"
    shell(hosts, f"{CLEAN}; systemd-run --unit gpufleet-registry --collect {command} && sleep 1")
    yield hosts
    shell(hosts, f"systemctl stop gpufleet-registry; {CLEAN}; rm -rf {FOLDER}")


@pytest.fixture(autouse=True)
def begin_without_the_image(hosts):
    serve(hosts, CLEAN)


def test_a_pinned_image_comes_from_a_mirror_once_and_shows_how_far_it_is(hosts):
    serve(hosts, rate=200_000)
    would = have(hosts, PINNED, {"mirror": MIRROR}, "--check", "--diff")
    assert would[:2] == (0, 2) and f"would be pulled from {MIRROR}" in would[2], would[2]
    assert image_id(hosts[0]) is None
    pulled = have(hosts, PINNED, {"mirror": MIRROR})
    assert pulled[:2] == (0, 2), pulled[2]
    assert re.search(
        rf"{hosts[0]}: image {NAME}: downloading, \d+ %, [\d.]+ MiB of 12 MiB, [\d.]+ MiB/s, 0:\d\d left", pulled[2]
    ), pulled[2]
    assert [image_id(host) for host in hosts] == [FIRST.id, FIRST.id]
    assert have(hosts, PINNED, {"mirror": MIRROR})[:2] == (0, 0)
    assert have(hosts, PINNED, {})[:2] == (0, 0)
    assert digest(FIRST.manifest) in shell(hosts[:1], "cat /var/lib/vllm/images/gpufleet-test*.json")


def test_a_wrong_digest_is_refused_and_the_old_image_stays(hosts):
    assert have(hosts, NAME, {"mirror": MIRROR})[0] == 0
    wrong = f"{NAME}@{digest(SECOND.manifest)}"
    code, changes, output = have(hosts, wrong, {"mirror": MIRROR})
    assert code != 0 and changes == 0
    assert f"{MIRROR} has no such image, or not with that digest" in output, output
    assert "Engines that run go on serving" in output
    serve(hosts, lie=True)
    code, changes, output = have(hosts, wrong, {"mirror": MIRROR})
    assert code != 0 and changes == 0
    assert "sent something else than what the digest says" in output, output
    assert [image_id(host) for host in hosts] == [FIRST.id, FIRST.id]


def test_a_tag_that_means_another_image_gets_the_pinned_one(hosts):
    serve(hosts, release="2")
    assert have(hosts, NAME, {"mirror": MIRROR})[0] == 0
    serve(hosts)
    assert have(hosts, PINNED, {"mirror": MIRROR})[:2] == (0, 2)
    assert [image_id(host) for host in hosts] == [FIRST.id, FIRST.id]


def test_hosts_with_different_images_under_one_tag_are_named(hosts):
    serve(hosts[1:], release="2")
    code, _changes, output = have(hosts, NAME, {"mirror": MIRROR})
    assert code != 0
    assert f"{NAME} is not the same image on every host" in output and FIRST.id in output and SECOND.id in output


def test_a_pull_that_breaks_off_goes_on(hosts):
    serve(hosts[:1], cut=3 << 20)
    code, changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR})
    assert (code, changes) == (0, 1), output


def test_a_login_is_asked_for_and_used(hosts):
    serve(hosts[:1], password="s3cret")
    code, _changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR})
    assert code != 0
    assert f"{MIRROR} wants a login" in output and f"docker login {MIRROR}" in output, output
    shell(hosts[:1], f"docker login --username gpu --password s3cret {MIRROR}")
    code, _changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR}, "-vvv")
    assert code == 0, output
    assert "s3cret" not in output


def test_a_registry_that_does_not_answer_is_named(hosts):
    code, _changes, output = have(hosts[:1], PINNED, {"mirror": "127.0.0.1:1"})
    assert code != 0
    assert "127.0.0.1:1 cannot be reached from this host" in output, output


def test_a_controller_that_is_killed_finds_its_pull_again(hosts):
    serve(hosts[:1], rate=300_000)
    killed = subprocess.Popen(
        playbook(hosts[:1], PINNED, {"mirror": MIRROR}),
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in killed.stdout:
        if "downloading" in line:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    code, changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR})
    assert (code, changes) == (0, 1), output
    assert not re.search(r"downloading, 0 %", output), output
    assert image_id(hosts[0]) == FIRST.id


def test_lost_connections_and_a_restart_of_docker_do_not_end_a_pull(hosts, tmp_path):
    # So slow that it cannot end before it was disturbed.
    serve(hosts[:1], rate=30_000)
    log = tmp_path / "pull.log"
    with log.open("w", encoding="utf-8") as output:
        pulling = subprocess.Popen(
            playbook(hosts[:1], PINNED, {"mirror": MIRROR}), cwd=REPOSITORY, env=ENVIRONMENT, stdout=output
        )
    try:
        wait_for(log, "downloading")
        # The one that asks for it is lost with the others. Between two looks at the pull a loss is not noticed.
        wait_for(log, "connection lost", lambda: run("ansible", hosts[0], "--inventory", INVENTORY, *LOSE_CONNECTIONS))
        serve(hosts[:1], "systemctl restart docker")
        assert pulling.wait(timeout=200) == 0, log.read_text()
    finally:
        pulling.kill()
    assert "changed=1" in log.read_text()
    assert image_id(hosts[0]) == FIRST.id


def wait_for(log, text, provoke=lambda: time.sleep(0.5)):
    """Until a growing file has a text."""
    deadline = time.monotonic() + 100
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        provoke()


def test_a_full_disk_is_found_before_and_named_if_it_fills_up(hosts):
    code, _changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR}, vllm_image_gib=1_000_000)
    assert code != 0 and "1000000.0 GiB" in output and "free, and pulling" in output, output
    shell(hosts[:1], SMALL_DISK)
    try:
        code, changes, output = have(hosts[:1], PINNED, {"mirror": MIRROR}, vllm_image_gib=0.001)
    finally:
        shell(hosts[:1], USUAL_DISK)
    assert code != 0 and changes == 0
    assert "the disk of /var/lib/docker-small filled up" in output, output
    assert "class: disk_full" in output


@pytest.fixture(name="archive", scope="module")
def save_archive(hosts, tmp_path_factory):
    """An archive of the image on the controller, and its path on the first host."""
    serve(hosts)
    assert have(hosts[:1], NAME, {"mirror": MIRROR})[0] == 0
    shell(hosts[:1], f"docker save --output {FOLDER}/image.tar {NAME}")
    target = tmp_path_factory.mktemp("archive") / "image.tar"
    fetch = ("--module-name", "ansible.builtin.fetch", "--args", f"src={FOLDER}/image.tar dest={target} flat=true")
    assert run("ansible", hosts[0], "--inventory", INVENTORY, "--become", *fetch).returncode == 0
    return target


def test_an_archive_on_the_controller(hosts, archive):
    source = {"archive": str(archive), "on": "controller", "id": FIRST.id}
    assert have(hosts, PINNED, source, "--check")[:2] == (0, 2)
    code, changes, output = have(hosts, PINNED, source)
    assert (code, changes) == (0, 2), output
    assert "copying from the controller" in output
    assert [image_id(host) for host in hosts] == [FIRST.id, FIRST.id]
    assert "total 0" in shell(hosts[:1], "ls -l /var/cache/vllm/images")
    # The digest was proven by the ID, and recorded.
    assert have(hosts, PINNED, {})[:2] == (0, 0)


def test_an_archive_that_is_not_the_pinned_image_is_refused_before_it_is_loaded(hosts, archive):
    serve(hosts, release="2")
    assert have(hosts, NAME, {"mirror": MIRROR})[0] == 0
    source = {"archive": str(archive), "on": "controller"}
    code, _changes, output = have(
        hosts, f"{NAME}@{digest(SECOND.manifest)[:-1]}0", {**source, "id": SECOND.id[:-1] + "0"}
    )
    assert code != 0 and "is not the pinned image" in output, output
    code, _changes, output = have(hosts, PINNED, source)
    assert code != 0 and "which an archive does not prove" in output, output
    assert [image_id(host) for host in hosts] == [SECOND.id, SECOND.id]


@pytest.mark.parametrize("kind", ["image", "archive"])
def test_another_host_that_has_it(hosts, archive, kind):
    if kind == "image":
        assert have(hosts[:1], PINNED, {"mirror": MIRROR})[0] == 0
        source = {"from_host": hosts[0]}
    else:
        source = {"archive": f"{FOLDER}/image.tar", "on": hosts[0], "id": FIRST.id}
    code, changes, output = have(hosts[1:], PINNED, source)
    assert (code, changes) == (0, 1), output
    assert image_id(hosts[1]) == FIRST.id
    assert "total 0" in shell(hosts, "ls -l /var/cache/vllm/images")
    assert "image_share" not in shell(hosts[:1], "ps -ef | grep [i]mage_share || true")


def test_old_images_go_only_when_asked_and_only_those_that_nothing_needs(hosts):
    host, old = hosts[:1], {}
    for release in ("2", "3", "4"):
        serve(host, release=release)
        name = f"gpufleet-test/engine:v{release}"
        assert have(host, name, {"mirror": MIRROR})[0] == 0
        old[release] = image_id(host[0], name)
    shell(host, "docker create --name gpufleet-test-used gpufleet-test/engine:v2")
    plan = '{"image": "gpufleet-test/engine:v3"}'
    shell(host, f"mkdir -p /etc/vllm/gpufleet-test && echo '{plan}' > /etc/vllm/gpufleet-test/plan.json")
    try:
        serve(host)
        assert have(host, PINNED, {"mirror": MIRROR})[:2] == (0, 1)
        listed = have(host, PINNED, {}, "--check", "--diff", vllm_image_prune=True)
        assert listed[:2] == (0, 1) and old["4"] in listed[2] and old["3"] not in listed[2], listed[2]
        assert image_id(host[0], old["4"]) == old["4"]
        assert have(host, PINNED, {}, vllm_image_prune=True)[:2] == (0, 1)
        left = [image_id(host[0], name) for name in (NAME, *old.values())]
        assert left == [FIRST.id, old["2"], old["3"], None]
        assert have(host, PINNED, {}, vllm_image_prune=True)[:2] == (0, 0)
    finally:
        shell(host, "docker rm gpufleet-test-used")

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_disk as disks

MOUNTS = """\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
30 22 0:40 / /mnt/nfs rw,relatime shared:2 - nfs4 10.0.0.9:/export/models rw,vers=4.2
31 22 259:1 / /srv/fast\\040disk rw,relatime - xfs /dev/nvme0n1p1 rw
32 22 0:41 / /dev/shm rw - tmpfs tmpfs rw
33 22 0:42 / /mnt/lustre rw - lustre 10.0.0.1@tcp:/scratch rw
"""


@pytest.fixture
def mountinfo(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return str(path)


@pytest.mark.parametrize(
    ("path", "kind", "mount"),
    [
        ("/mnt/nfs/Qwen3-8B", "network", "/mnt/nfs"),
        ("/mnt/nfs-not", "local", "/"),
        ("/mnt/lustre", "network", "/mnt/lustre"),
        ("/srv/fast disk/models", "local", "/srv/fast disk"),
        ("/dev/shm/x", "memory", "/dev/shm"),
        ("/srv/models", "local", "/"),
    ],
)
def test_the_mount_of_a_path_tells_its_kind(mountinfo, tmp_path, path, kind, mount):
    disk = disks.disk_of(path, mountinfo, str(tmp_path / "no devices"))
    assert (disk["kind"], disk["mount"]) == (kind, mount)


@pytest.mark.parametrize("place", ["queue", "partition/../queue"])
def test_a_disk_with_platters_is_known_also_by_its_partition(mountinfo, tmp_path, place):
    model = tmp_path / "model"
    model.mkdir()
    number = f"{os.major(model.stat().st_dev)}:{os.minor(model.stat().st_dev)}"
    device = tmp_path / "block" / "sda"
    (device / "queue").mkdir(parents=True)
    (device / "queue" / "rotational").write_text("1\n")
    (device / "sda2").mkdir()
    target = device if place == "queue" else device / "sda2"
    (tmp_path / "block" / number).symlink_to(target)
    assert disks.disk_of(str(model), mountinfo, str(tmp_path / "block"))["kind"] == "rotational"


def test_the_rate_is_measured_by_reading(tmp_path):
    (tmp_path / "shard").write_bytes(os.urandom(disks.SMALLEST_SAMPLE))
    rate = disks.read_rate(str(tmp_path / "shard"))
    assert rate > 1_000_000


def test_what_is_small_tells_no_rate(tmp_path):
    (tmp_path / "shard").write_bytes(b"x" * 1000)
    disk = disks.measure(str(tmp_path), [{"path": "shard", "size": 1000}])
    assert disk["read_bytes_per_second"] is None
    assert disks.load_seconds(disk, 1000) is None


def disk(kind, rate):
    return {"kind": kind, "filesystem": "fs", "device": "dev", "mount": "/m", "read_bytes_per_second": rate}


@pytest.mark.parametrize(
    ("kind", "rate", "is_slow"),
    [
        ("network", 110_000_000, True),
        ("network", 2_000_000_000, True),
        ("rotational", 180_000_000, True),
        ("rotational", 1_600_000_000, False),  # a virtual disk that only says so
        ("local", 150_000_000, False),
        ("network", None, False),
    ],
)
def test_network_and_platters_are_slow(kind, rate, is_slow):
    assert (disks.slowness(disk(kind, rate), "/m/model", 16 << 30) is not None) is is_slow


def test_the_report_has_the_cost_and_the_next_step():
    told = disks.slowness(disk("network", 110_000_000), "/m/model", 16 << 30)
    assert "110 MB/s (measured)" in told
    assert "16.0 GiB for about 3 min" in told
    assert "checkpoint_source" in told

"""How many cores a process may use."""

import os
from pathlib import Path

import pytest

from tenure.cores import cores, cpu_quota

V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/", {"cpu.max": "400000 100000"}, 4),
        ("0::/", {"cpu.max": "max 100000"}, 65536),
        ("0::/", {}, 65536),
        ("0::/kubepods/pod1/c", {"kubepods/pod1/c/cpu.max": "max 100000", "kubepods/cpu.max": "250000 100000"}, 2.5),
        ("0::/../host", {"cpu.max": "50000 100000"}, 0.5),
        (
            "4:memory:/x\n3:cpu,cpuacct:/docker/c",
            {"cpu/docker/c/" + V1[0]: "400000", "cpu/docker/c/" + V1[1]: "100000"},
            4,
        ),
        ("3:cpu:/only/the/host/knows", {"cpu/" + V1[0]: "150000", "cpu/" + V1[1]: "50000"}, 3),
        ("3:cpu:/", {"cpu/" + V1[0]: "-1", "cpu/" + V1[1]: "100000"}, 65536),
    ],
)
def test_a_quota_of_processor_time(tmp_path: Path, group: str, files: dict[str, str], quota: float) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cpu_quota(tmp_path) == quota


def test_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    for quota, found in ((65536.0, 64), (4.0, 4), (2.9, 2), (0.2, 1)):
        monkeypatch.setattr("tenure.cores.cpu_quota", lambda quota=quota: quota)
        assert cores() == found

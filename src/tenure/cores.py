"""How many cores this process may use."""

import os
from contextlib import suppress
from pathlib import Path


def cores() -> int:
    """How many cores this process may use, by its affinity and by the quota of its control group."""
    return max(1, min(len(os.sched_getaffinity(0)), int(cpu_quota())))


def cpu_quota(root: Path = Path("/")) -> float:
    """Cores' worth of processor time that Linux's control groups, version 2 or 1, allow this process; at most 65536."""
    quotas = [65536.0]
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be one that only the host knows; then the top is the container's own group.
        group_folder = top / group.lstrip("/")
        for folder in (group_folder, *group_folder.parents):
            if folder.is_relative_to(top):
                quotas += _quota_of(folder)
    return min(quotas)


def _quota_of(folder: Path) -> list[float]:
    with suppress(OSError):
        quota, period = (folder / "cpu.max").read_text().split()
        return [] if quota == "max" else [int(quota) / int(period)]
    with suppress(OSError):
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return [int(quota) / int(period)] if int(quota) > 0 else []
    return []

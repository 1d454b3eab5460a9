"""What the machine is."""

from __future__ import annotations

import platform
from pathlib import Path


def machine() -> dict[str, object]:
    """Return what the machine is."""
    import psutil

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": len(psutil.Process().cpu_affinity() or []) or psutil.cpu_count(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 1e9),
        "system": platform.platform(),
        "python": platform.python_version(),
    }

"""The memory of a host is what its control groups leave of it."""

import pytest

from torchx_recsys.planner.hardware import GIB
from trainer.plan.topology import host_memory_bytes

MACHINE = 64 * GIB


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/step", {}, MACHINE),
        ("0::/job/step", {"job/step/memory.max": "max", "job/memory.max": 5 * GIB}, 5 * GIB),
        ("0::/job/step", {"job/step/memory.max": 3 * GIB, "job/memory.max": 5 * GIB}, 3 * GIB),
        ("0::/", {"memory.max": 2 * GIB}, 2 * GIB),
        ("3:cpuset:/a\n2:memory:/job", {"memory/job/memory.limit_in_bytes": 4 * GIB}, 4 * GIB),
        ("2:cpu,memory:/elsewhere", {"memory/memory.limit_in_bytes": 7 * GIB}, 7 * GIB),
        ("2:memory:/job", {"memory/job/memory.limit_in_bytes": 2**63 - 4096}, MACHINE),
        (None, {}, MACHINE),
    ],
)
def test_the_least_limit_counts(tmp_path, groups, limits, expected):
    if groups:
        (tmp_path / "groups").write_text(groups + "\n")
    for name, limit in limits.items():
        file = tmp_path / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    assert host_memory_bytes(tmp_path / "groups", tmp_path / "mounted", MACHINE) == expected


def test_this_machine_has_memory():
    assert GIB / 4 < host_memory_bytes() < 2**50

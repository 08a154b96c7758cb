"""Plans for hosts that this machine is not."""

import pytest
from command import run_trainer
from jobs import config

from trainer.config.root import Config
from trainer.plan.hardware import HOSTS
from trainer.plan.planner import GB_PER_SECOND, GIB, topology


def topology_of(device="cuda", **planner):
    changes = {f"planner__{key}": value for key, value in planner.items()}
    return topology(Config.model_validate(config("nowhere", **changes)).planner, 16, 8, device)


@pytest.mark.parametrize("name", [name for name, host in HOSTS.items() if host.gpu])
def test_memory_and_bandwidths_are_the_hosts(name):
    host, found = HOSTS[name], topology_of(hardware=name)
    assert found.devices[0].storage.hbm == host.gpu.memory_gib * GIB
    assert found.devices[0].storage.ddr == host.memory_gib * GIB // 8
    assert found.hbm_mem_bw == host.gpu.hbm_gb_per_second * GB_PER_SECOND
    assert found.comms_bandwidths.intra_host_bw == host.gpu.nvlink_gb_per_second * GB_PER_SECOND
    assert found.comms_bandwidths.inter_host_bw == host.network_gb_per_second / host.gpus * GB_PER_SECOND


def test_keys_that_are_set_win():
    own = {
        "memory_gib": 10.0,
        "host_memory_gib": 20.0,
        "intra_node_gb_per_second": 30.0,
        "inter_node_gb_per_second": 4.0,
        "hbm_gb_per_second": 500.0,
    }
    found = topology_of(hardware="h100", **own)
    assert (found.devices[0].storage.hbm, found.devices[0].storage.ddr) == (10 * GIB, 20 * GIB)
    assert found.hbm_mem_bw == 500 * GB_PER_SECOND
    assert found.comms_bandwidths.intra_host_bw == 30 * GB_PER_SECOND
    assert found.comms_bandwidths.inter_host_bw == 4 * GB_PER_SECOND


def test_a_host_without_a_gpu_has_its_memory_and_usual_bandwidths():
    found = topology_of("cpu", hardware="cpu.8xlarge", reserve=0.0)
    assert found.devices[0].storage.ddr == 256 * GIB // 8
    assert found.comms_bandwidths.intra_host_bw == topology_of("cpu").comms_bandwidths.intra_host_bw


def test_a_plan_for_two_hosts_that_this_machine_is_not():
    done = run_trainer("plan", "criteo_terabyte", "--world-size", "16", "--planner.hardware", "h100")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.partition("MiB of tables")[2].splitlines()) == 16 + 2


def test_tables_that_do_not_fit_are_refused():
    done = run_trainer("plan", "criteo_terabyte", "--world-size", "1", "--planner.hardware", "a100_1")
    assert done.returncode == 2
    assert "do not fit the memory of the ranks" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--planner.hardware", "h10"], "planner.hardware is 'h10', which is no known host; did you mean 'h100'?"),
        (["--planner.hardware", "h100", "--world-size", "12"], "--world-size is 12; on hosts of 8 GPUs it must be"),
    ],
)
def test_wrong_hardware_is_one_line(flags, message):
    done = run_trainer("plan", "synthetic", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")

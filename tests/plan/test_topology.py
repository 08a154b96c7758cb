"""Plans for hosts that this machine is not."""

import pytest
from command import run_trainer
from jobs import config

from torchx_recsys.planner.hardware import GIB, HOSTS
from torchx_recsys.planner.topology import ACHIEVED
from trainer.config.root import Config
from trainer.plan.topology import GB_PER_SECOND, topology_to_plan_for

HALF = ("--planner.host-memory-gib", "72")


def ranks_of(device="cuda", **planner):
    changes = {f"planner__{key}": value for key, value in ({"reserve": 0.0} | planner).items()}
    settings = Config.model_validate(config("nowhere", **changes))
    return topology_to_plan_for(settings.data, settings.planner, settings.comms, settings.train, 16, 8, device)


def between(speeds):
    """Returns the GB/s of the data sheet between ranks of a host, both directions, and to other hosts."""
    return 2 / speeds.all_to_all_byte / ACHIEVED, 1 / speeds.network_byte / ACHIEVED


@pytest.mark.few(6, "six hosts stand for all")
@pytest.mark.parametrize("name", [name for name, host in HOSTS.items() if host.gpu])
def test_memory_and_bandwidths_are_the_hosts(name):
    host, found = HOSTS[name], ranks_of(hardware=name)
    assert found.gpu_bytes == host.gpu.memory_gib * GIB
    assert found.host_bytes == host.memory_gib * GIB // 8
    assert found.gpu_bandwidth == host.gpu.hbm_gb_per_second * GB_PER_SECOND
    assert between(found.speeds) == pytest.approx((host.gpu.nvlink_gb_per_second, host.network_gb_per_second_per_gpu))


def test_keys_that_are_set_win():
    own = {
        "memory_gib": 10.0,
        "host_memory_gib": 20.0,
        "intra_node_gb_per_second": 30.0,
        "inter_node_gb_per_second": 4.0,
        "hbm_gb_per_second": 500.0,
    }
    found = ranks_of(hardware="h100", **own)
    assert (found.gpu_bytes, found.host_bytes) == (10 * GIB, 20 * GIB)
    assert found.gpu_bandwidth == 500 * GB_PER_SECOND
    assert between(found.speeds) == pytest.approx((30, 4))


def test_a_host_without_a_gpu_has_its_memory_and_usual_bandwidths():
    found = ranks_of("cpu", hardware="cpu.8xlarge", reserve=0.0)
    assert found.host_bytes == 256 * GIB // 8
    assert found.speeds == ranks_of("cpu").speeds


def test_a_plan_for_two_hosts_that_this_machine_is_not():
    done = run_trainer("plan", "criteo_terabyte", "--world-size", "16", "--planner.hardware", "h100")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("h100:2: 16 GPUs on 2 hosts of h100\n")


@pytest.mark.more("a search of many seconds; activations that do not fit are refused, too")
def test_tables_that_do_not_fit_are_refused():
    done = run_trainer("plan", "criteo_terabyte", "--world-size", "1", "--planner.hardware", "a100_1")
    assert done.returncode == 2
    assert "no placement of their shards was found" in done.stderr  # on the GPU and the host together, it might
    done = run_trainer("plan", "criteo_terabyte", "--world-size", "1", "--planner.hardware", "a100_1", *HALF)
    assert done.returncode == 2
    assert "a100_1:1 does not fit: a rank needs at least" in done.stderr
    assert "micro_batches" not in done.stderr


def test_activations_that_do_not_fit_can_be_divided():
    words = "plan", "movielens", "--on", "h100_1:1", "--data.global_batch_size", "60000000"
    done = run_trainer(*words)
    assert done.returncode == 2
    assert done.stderr.endswith("; --train.micro_batches divides its activations\n")
    assert run_trainer(*words, "--train.micro_batches", "4").returncode == 0


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

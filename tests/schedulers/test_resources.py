"""Named resources that TorchX finds, with the figures of their hosts."""

from importlib.metadata import entry_points

import pytest
from torchx.specs import named_resources
from torchx.specs import resource as find

from schedulers.resources import resource_of
from torchx_recsys.planner.hardware import AMAZON, HOSTS, PARTS, REGISTERED, UNREGISTERED, WHOLE


@pytest.mark.parametrize("name", sorted({*HOSTS} - {*UNREGISTERED}))
def test_torchx_finds_every_host_as_it_is_in_the_table(name):
    """TorchX's own AWS resources too: the table repeats their figures for the planner."""
    found, host = find(h=name), HOSTS[name]
    assert (found.cpu, found.gpu, found.memMB) == (host.cpu, host.gpus, resource_of(host).memMB)
    assert found.capabilities == resource_of(host).capabilities
    assert found.get_resource_name() == name


def test_each_registered_name_is_ours_alone():
    registered = [entry.name for entry in entry_points(group="torchx.named_resources")]
    assert sorted(registered) == sorted(REGISTERED)
    assert set(AMAZON) < set(named_resources) - set(registered)


@pytest.mark.parametrize("name", PARTS)
def test_parts_make_up_the_whole(name):
    whole, part = WHOLE[name.partition("_")[0]], HOSTS[name]
    times = whole.gpus // part.gpus
    assert name.endswith(f"_{part.gpus}")
    assert part.gpu == whole.gpu
    for figure in ("cpu", "memory_gib", "network_gb_per_second"):
        assert getattr(part, figure) * times == getattr(whole, figure)


@pytest.mark.parametrize("name", HOSTS)
def test_figures_are_of_the_right_size(name):
    host = HOSTS[name]
    assert 2 <= host.memory_gib / host.cpu <= 20
    assert host.source.startswith("https://")
    if host.gpu:
        assert host.gpu.hbm_gb_per_second > host.gpu.nvlink_gb_per_second > host.network_gb_per_second_per_gpu > 1
        assert host.memory_gib > host.gpus * host.gpu.memory_gib


def test_a_component_asks_for_a_part(tmp_path):
    from components.dlrm import multi_node

    assert multi_node(config="c.toml", h="h200_2").roles[0].resource.gpu == 2

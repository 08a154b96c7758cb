"""TorchX's own scheduler `kubernetes` (Volcano) with our components, on the stand-in for a cluster."""

import pytest

VOLCANO = ("-s", "kubernetes", "-cfg", "queue=default", "--workspace", "")
SLEEP = ("utils.sh", "--image", "trainer:1", "exec", "sleep", "100")


def phase(cluster):
    return cluster.all("Job")[0]["status"]["state"]["phase"]


def test_a_data_job_runs_to_its_end(cluster, quick):
    job = ("data.synthetic", "--rows", "1000", "--files", "1", "--validation_rows", "0", "--test_rows", "0")
    handle = quick("run", *VOLCANO, *job, "--image", "trainer:1").strip()
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    assert "State: SUCCEEDED" in quick("status", handle)
    assert list((cluster.image / "data/synthetic/train").glob("*.parquet"))
    assert "SUCCEEDED" in quick("list", "-s", "kubernetes", "-cfg", "namespace=default")


def test_a_wrong_configuration_fails_the_job_and_stays_in_its_log(cluster, quick):
    handle = quick("run", *VOLCANO, "tools.plan", "--config", "nowhere.toml", "--image", "trainer:1").strip()
    cluster.wait_for(lambda: phase(cluster) == "Failed")
    assert "State: FAILED" in quick("status", handle)
    assert "nowhere.toml" in quick("log", f"{handle}/plan/0")


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_log_has_the_lines_as_they_were_written(cluster, quick, follow):
    words = ("utils.sh", "--image", "trainer:1", "sh", "-c", "echo first; echo 'zwölf'")
    handle = quick("run", *VOLCANO, *words).strip()
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    printed = [line.split() for line in quick("log", *follow, f"{handle}/sh/0").splitlines()]
    assert [(first, last) for first, *_, last in printed] == [("sh/0", "first"), ("sh/0", "zwölf")]


def test_cancel_and_delete(cluster, quick):
    handle = quick("run", *VOLCANO, *SLEEP).strip()
    cluster.wait_for(lambda: phase(cluster) == "Running")
    quick("cancel", handle)
    assert "State: CANCELLED" in quick("status", handle)
    cluster.wait_for(lambda: not cluster.pods())
    quick("delete", handle)
    with pytest.raises(SystemExit):
        quick("status", handle)


@pytest.mark.parametrize("command", ["status", "log", "cancel", "delete", "describe"])
def test_a_handle_without_a_namespace_is_one_line(quick, capsys, command):
    with pytest.raises(SystemExit) as stop:
        quick(command, "kubernetes://torchx/job")
    assert stop.value.code == 2
    assert "handle kubernetes://torchx/job: must be kubernetes://torchx/NAMESPACE:NAME" in capsys.readouterr().err


def test_a_cluster_out_of_reach_is_one_line(cluster, quick, capsys):
    cluster.stop()
    for words in (("status", "kubernetes://torchx/default:job"), ("list", "-s", "kubernetes", "-cfg", "namespace=x")):
        with pytest.raises(SystemExit) as stop:
            quick(*words)
        assert stop.value.code == 2
        assert f"torchx {words[0]}: error: Kubernetes cannot be reached: " in capsys.readouterr().err

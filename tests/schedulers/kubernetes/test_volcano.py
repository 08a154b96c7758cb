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


def test_cancel_and_delete(cluster, quick):
    handle = quick("run", *VOLCANO, *SLEEP).strip()
    cluster.wait_for(lambda: phase(cluster) == "Running")
    quick("cancel", handle)
    assert "State: CANCELLED" in quick("status", handle)
    cluster.wait_for(lambda: not cluster.pods())
    quick("delete", handle)
    with pytest.raises(SystemExit):
        quick("status", handle)

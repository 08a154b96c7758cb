"""The controllers of the stand-in: those of JobSet, Job, Kueue and Volcano, as far as the tests need them.

Restated from their sources: JobSet's failure policies, the Job controller's pod failure policy (only pods that have
ended count), Kueue's admission of whole jobs, Volcano's gangs and its restarts. `cluster` is a kube_api.Cluster,
locked.
"""

import copy
import re
import secrets
from datetime import UTC, datetime

QUEUE = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


def reconcile(cluster) -> None:
    """Brings every object one step nearer to its specification."""
    for jobset in cluster.all("JobSet"):
        if QUEUE in jobset["metadata"].get("labels", {}):
            queue(cluster, jobset)
        run_jobset(cluster, jobset)
    for job in cluster.all("Job"):
        run_volcano(cluster, job)
    for pod in cluster.all("Pod"):
        cluster.nodes.run(pod)


def queue(cluster, jobset: dict) -> None:
    """Kueue: admits a job if its queue has room for all its pods, and evicts what is deactivated."""
    metadata = jobset["metadata"]
    owned = [each for each in cluster.all("Workload") if each["metadata"]["ownerUid"] == metadata["uid"]]
    if not owned:
        labels = {"kueue.x-k8s.io/job-uid": metadata["uid"]}
        workload = {"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta1", "spec": {"active": True}}
        workload["metadata"] = {"name": f"jobset-{metadata['name']}", "labels": labels, "ownerUid": metadata["uid"]}
        owned = [cluster.post("Workload", metadata["namespace"], workload)]
    workload, name = owned[0], metadata["labels"][QUEUE]
    others = [each for each in cluster.all("JobSet") if each is not jobset and not each["spec"].get("suspend")]
    used = sum(size(each) for each in others if each["metadata"]["labels"].get(QUEUE) == name and not ended(each))
    fits = workload["spec"]["active"] and used + size(jobset) <= cluster.queues.get(name, 0)
    condition = {"type": "QuotaReserved", "status": str(fits), "reason": "QuotaReserved" if fits else "Pending"}
    if not fits:
        condition["message"] = f"couldn't assign flavors to pod set: insufficient unused quota in {name}"
    workload["status"] = {"conditions": [condition]}
    if jobset["spec"].get("suspend", False) == fits and not ended(jobset):
        jobset["spec"]["suspend"] = not fits
        cluster.store(jobset)


def size(jobset: dict) -> int:
    """The number of pods of a JobSet."""
    return sum(each["template"]["spec"]["parallelism"] for each in jobset["spec"]["replicatedJobs"])


def ended(jobset: dict) -> bool:
    """Whether a JobSet has ended, well or not."""
    return "terminalState" in jobset.get("status", {})


def run_jobset(cluster, jobset: dict) -> None:
    """JobSet and Job: makes pods, restarts all of them after a failure, and keeps the status."""
    before = repr(jobset.get("status"))
    status = jobset.setdefault("status", {"restarts": 0, "restartsCountTowardsMax": 0})
    mine = [pod for pod in cluster.all("Pod") if pod["metadata"].get("ownerUid") == jobset["metadata"]["uid"]]
    attempt = str(status["restarts"])
    old = [pod for pod in mine if pod["metadata"]["labels"][ATTEMPT] != attempt]
    for pod in old:
        delete(cluster, pod)
    if not ended(jobset) and jobset["spec"].get("suspend"):
        for pod in mine:
            delete(cluster, pod)
        status["replicatedJobsStatus"] = [{"name": each["name"], "suspended": 1} for each in replicated(jobset)]
    elif not ended(jobset) and not old:
        jobs = [run_job(cluster, jobset, each, mine) for each in replicated(jobset)]
        status["replicatedJobsStatus"] = [job for job, _ in jobs]
        failures = [why for _, why in jobs if why]
        if failures:
            fail(cluster, jobset, failures, mine)
        elif all(job["succeeded"] for job, _ in jobs):
            status |= {"terminalState": "Completed", "conditions": [_condition("Completed", "jobset completed")]}
    if repr(status) != before:
        cluster.store(jobset)


def replicated(jobset: dict) -> list[dict]:
    """The replicated jobs of a JobSet."""
    return jobset["spec"]["replicatedJobs"]


def run_job(cluster, jobset: dict, replicated_job: dict, mine: list[dict]) -> tuple[dict, tuple[str, str] | None]:
    """One Indexed Job: its part of the JobSet's status, and the reason and the message of its failure, if it failed.

    A Job with a failed pod ends its other pods, and has failed once they are gone.
    """
    name, spec = replicated_job["name"], replicated_job["template"]["spec"]
    done = {job["name"] for job in jobset["status"].get("replicatedJobsStatus", ()) if job.get("succeeded")}
    if any(each["name"] not in done for each in replicated_job.get("dependsOn", ())):
        return {"name": name, "active": 0, "suspended": 0, "ready": 0, "succeeded": 0, "failed": 0}, None
    pods = [pod for pod in mine if pod["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] == name]
    failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
    leaving = [pod for pod in pods if failed and pod["status"]["phase"] in ("Pending", "Running")]
    for pod in leaving:
        delete(cluster, pod)
    there = {pod["metadata"]["annotations"][INDEX] for pod in pods}
    for index in range(0 if failed else spec["completions"]):
        if str(index) not in there:
            make_pod(cluster, jobset, replicated_job, str(index))
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    succeeded = phases.count("Succeeded") == spec["completions"]
    ready = sum(phase in ("Running", "Succeeded") for phase in phases) == spec["completions"]
    has_failed = bool(failed) and not leaving
    counts = {"ready": int(ready and not succeeded), "succeeded": int(succeeded), "failed": int(has_failed)}
    part = {"name": name, "active": int(bool(pods) and not succeeded), "suspended": 0, **counts}
    return part, failure(spec, failed) if has_failed else None


def make_pod(cluster, jobset: dict, replicated_job: dict, index: str) -> None:
    """Creates the pod of one index, with the labels of Job and JobSet."""
    metadata, name = jobset["metadata"], replicated_job["name"]
    pod = copy.deepcopy(replicated_job["template"]["spec"]["template"])
    pod |= {"kind": "Pod", "apiVersion": "v1"}
    pod["metadata"]["name"] = f"{metadata['name']}-{name}-0-{index}-{secrets.token_hex(3)[:5]}"
    pod["metadata"]["ownerUid"] = metadata["uid"]
    pod["metadata"].setdefault("annotations", {})[INDEX] = index
    pod["metadata"].setdefault("labels", {}).update(
        {
            "jobset.sigs.k8s.io/jobset-name": metadata["name"],
            "jobset.sigs.k8s.io/replicatedjob-name": name,
            ATTEMPT: str(jobset["status"]["restarts"]),
            INDEX: index,
        }
    )
    if why := cluster.admit(pod):
        warn(
            cluster,
            jobset,
            f"{metadata['name']}-{name}-0",
            f'Error creating: pods "{pod["metadata"]["name"]}" is {why}',
        )
    else:
        cluster.nodes.run(cluster.post("Pod", metadata["namespace"], pod))


def warn(cluster, jobset: dict, job: str, message: str) -> None:
    """Posts the Job controller's event about a pod that was not made."""
    event = {"kind": "Event", "type": "Warning", "reason": "FailedCreate", "message": message}
    event |= {"involvedObject": {"kind": "Job", "name": job}, "lastTimestamp": timestamp()}
    event["metadata"] = {"name": f"{job}.{secrets.token_hex(8)}"}
    if not [each for each in cluster.all("Event") if each["involvedObject"]["name"] == job]:
        cluster.post("Event", jobset["metadata"]["namespace"], event)


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def restricted(pod: dict) -> str:
    """Pod Security's `restricted`, of the fields that pods of jobs have: why a pod is forbidden, empty if it is not."""
    spec, wrong = pod["spec"], []
    of_pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        own = of_pod | container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        wrong += [
            name
            for name, is_wrong in {
                "privileged": own.get("privileged"),
                "allowPrivilegeEscalation != false": own.get("allowPrivilegeEscalation") is not False,
                "unrestricted capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add"),
                "runAsNonRoot != true": own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0,
                "seccompProfile": own.get("seccompProfile", {}).get("type") != "RuntimeDefault",
            }.items()
            if is_wrong
        ]
    wrong += ["restricted volume types" for volume in spec.get("volumes", ()) if "hostPath" in volume]
    return f'forbidden: violates PodSecurity "restricted:latest": {", ".join(wrong)}' if wrong else ""


def failure(spec: dict, failed: list[dict]) -> tuple[str, str] | None:
    """The reason and the message with which a Job fails: those of the first pod that a rule is about, if any is."""
    for pod in failed:
        for index, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", ())):
            if found := matches(rule, pod):
                return "PodFailurePolicy", f"{found} matching {rule['action']} rule at index {index}"
    return ("BackoffLimitExceeded", "Job has reached the specified backoff limit") if failed else None


def matches(rule: dict, pod: dict) -> str:
    """What a rule of a pod failure policy finds in a failed pod; empty if nothing."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    wanted = rule.get("onExitCodes", {"values": ()})
    for each in pod["status"].get("containerStatuses", ()):
        code = each["state"].get("terminated", {}).get("exitCode")
        if code in wanted["values"] and each["name"] == wanted["containerName"]:
            return f"Container {each['name']} for pod {name} failed with exit code {code}"
    types = {each["type"] for each in pod["status"]["conditions"] if each["status"] == "True"}
    found = [each["type"] for each in rule.get("onPodConditions", ()) if each["type"] in types]
    return f"Pod {name} has condition {found[0]}" if found else ""


def fail(cluster, jobset: dict, failures: list[tuple[str, str]], pods: list[dict]) -> None:
    """Applies the failure policy of a JobSet to the reasons and messages with which its jobs failed."""
    policy, status = jobset["spec"]["failurePolicy"], jobset["status"]
    rules = [rule for rule in policy.get("rules", ()) if any(applies(rule, *each) for each in failures)]
    action = rules[0]["action"] if rules else "RestartJobSet"
    if action == "RestartJobSetAndIgnoreMaxRestarts":
        status["restarts"] += 1
    elif action == "RestartJobSet" and status["restartsCountTowardsMax"] < policy["maxRestarts"]:
        status["restarts"] += 1
        status["restartsCountTowardsMax"] += 1
    else:
        why = "applying FailJobSet failure policy action"
        message = why if action == "FailJobSet" else "jobset failed due to reaching max number of restarts"
        first = f"{jobset['metadata']['name']}-{replicated(jobset)[0]['name']}-0"
        failed = _condition("Failed", f"{message} (first failed job: {first})")
        status |= {"terminalState": "Failed", "conditions": [failed]}
        for pod in pods:
            if pod["status"]["phase"] in ("Pending", "Running"):
                delete(cluster, pod)


def applies(rule: dict, reason: str, message: str) -> bool:
    """Whether a rule of a JobSet's failure policy is about a job that failed; an empty list is about all."""
    reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
    matching = not patterns or any(re.search(pattern, message) for pattern in patterns)
    return matching and (not reasons or reason in reasons)


def delete(cluster, pod: dict) -> None:
    """Deletes a pod unless it is already on its way out."""
    if not pod["metadata"].get("deletionTimestamp") or pod["status"]["phase"] in ("Succeeded", "Failed"):
        cluster.nodes.delete(pod)


def run_volcano(cluster, job: dict) -> None:
    """Volcano: one pod for each task, all or none, restarts of the whole job by policy, and the status."""
    metadata, spec = job["metadata"], job["spec"]
    before = repr(job.get("status"))
    status = job.setdefault("status", {"state": {"phase": "Pending"}, "retryCount": 0})
    pods = {
        pod["metadata"]["task"]: pod for pod in cluster.all("Pod") if pod["metadata"].get("ownerUid") == metadata["uid"]
    }
    phase = status["state"]["phase"]
    if phase in ("Aborted", "Failed", "Completed"):
        for pod in pods.values():
            if pod["status"]["phase"] in ("Pending", "Running"):
                delete(cluster, pod)
    elif phase == "Restarting":
        for pod in pods.values():
            delete(cluster, pod)
        if status["retryCount"] >= (spec.get("maxRetry") or 3):
            status["state"]["phase"] = "Failed"
        elif not pods:
            status["state"]["phase"] = "Pending"
    else:
        run_tasks(cluster, job, pods)
    phases = {name: pod.get("status", {}).get("phase", "Pending") for name, pod in pods.items()}
    status["taskStatusCount"] = {name: {"phase": {each: 1}} for name, each in phases.items()}
    if repr(status) != before:
        cluster.store(job)


def run_tasks(cluster, job: dict, pods: dict[str, dict]) -> None:
    """Starts the tasks of a Volcano Job that is not stopping, and watches them."""
    spec, state = job["spec"], job["status"]["state"]
    if not pods and has_no_gang(cluster, job):
        return
    for task in spec["tasks"]:
        if task["name"] not in pods:
            make_task_pod(cluster, job, task)
    phases = {name: pod.get("status", {}).get("phase") for name, pod in pods.items()}
    if len(phases) == len(spec["tasks"]) and not set(phases.values()) & {"Pending", None}:
        state["phase"] = "Running"
    failed = [task for task in spec["tasks"] if phases.get(task["name"]) == "Failed"]
    if any(rule["action"] == "RestartJob" for task in failed for rule in task.get("policies", ())):
        state["phase"] = "Restarting"
        job["status"]["retryCount"] += 1
    elif len(phases) == len(spec["tasks"]) and set(phases.values()) <= {"Succeeded", "Failed"}:
        state["phase"] = "Failed" if failed else "Completed"


def has_no_gang(cluster, job: dict) -> bool:
    """Whether Volcano's scheduler keeps a job waiting, with its reason in the job's pod group."""
    metadata, why = job["metadata"], cluster.why_no_gang
    groups = [each for each in cluster.all("PodGroup") if each["metadata"]["ownerUid"] == metadata["uid"]]
    if why and not groups:
        group = {"kind": "PodGroup", "apiVersion": "scheduling.volcano.sh/v1beta1"}
        condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": why}
        group["metadata"] = {"name": f"{metadata['name']}-{metadata['uid']}", "ownerUid": metadata["uid"]}
        group["status"] = {"phase": "Pending", "conditions": [condition]}
        cluster.post("PodGroup", metadata["namespace"], group)
    return bool(why)


def make_task_pod(cluster, job: dict, task: dict) -> None:
    """Creates the pod of a task, with the hosts of all tasks in its environment."""
    pod = copy.deepcopy(task["template"])
    name = f"{job['metadata']['name']}-{task['name']}-0"
    pod |= {"kind": "Pod", "apiVersion": "v1"}
    pod["metadata"] |= {"name": name, "ownerUid": job["metadata"]["uid"], "task": task["name"]}
    for each in job["spec"]["tasks"]:
        variable = f"VC_{each['name'].upper().replace('-', '_')}_HOSTS"
        value = f"{job['metadata']['name']}-{each['name']}-0.{job['metadata']['name']}"
        pod["spec"]["containers"][0]["env"].append({"name": variable, "value": value})
    if why := cluster.admit(pod):
        warn(cluster, job, job["metadata"]["name"], f'Error creating: pods "{name}" is {why}')
        return
    cluster.nodes.run(cluster.post("Pod", job["metadata"]["namespace"], pod))


def _condition(kind: str, message: str) -> dict:
    return {"type": kind, "status": "True", "reason": kind, "message": message}

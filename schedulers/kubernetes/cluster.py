"""Calls to a cluster with Volcano: its Jobs and their pod groups."""

from typing import Any

from schedulers.errors import SchedulerError
from schedulers.jobset.cluster import Namespace, Object

JOBS = {"group": "batch.volcano.sh", "version": "v1alpha1", "plural": "jobs"}
POD_GROUPS = {"group": "scheduling.volcano.sh", "version": "v1beta1", "plural": "podgroups"}
NO_VOLCANO = (
    f"the cluster has no {JOBS['group']}/{JOBS['version']}: install Volcano there, or use -s jobset with JobSet"
)
# What the API server answers where a kind of object is not installed; a missing namespace has other words.
UNKNOWN_KIND = "could not find the requested resource"


class VolcanoCluster(Namespace):
    """One namespace of a cluster: its Volcano Jobs."""

    def create(self, resource: Object, dry_run: bool = False) -> Object:
        """Creates a Job, or has the cluster validate it only."""
        options: Object = {"dry_run": "All"} if dry_run else {}
        return self._known("create", body=resource, **options)

    def job(self, name: str) -> Object | None:
        """Reads a Job; None if there is none of that name."""
        return self._call("get", JOBS, name=name)

    def jobs(self) -> list[Object]:
        """Reads all Jobs of the namespace."""
        return self._known("list")["items"]

    def abort(self, job: Object) -> bool:
        """Marks a Job as aborted, so that Volcano ends its pods; returns whether it was still as it was read."""
        status = job.get("status", {})
        body = job | {"status": status | {"state": status.get("state", {}) | {"phase": "Aborted"}}}
        name = job["metadata"]["name"]
        return self._call("replace", JOBS, missing=(409,), part="_status", name=name, body=body) is not None

    def delete(self, name: str) -> None:
        """Deletes a Job and, in the background, its pods."""
        self._call("delete", JOBS, name=name)

    def pod_group(self, job: Object) -> Object | None:
        """Reads the pod group of a Job, which has the reasons of queue and gang; None without it or without the right.

        Newer versions of Volcano name it by the Job's name and uid, older ones by the name.
        """
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        for each in (f"{name}-{uid}", name):
            if found := self._call("get", POD_GROUPS, missing=(403, 404), name=each):
                return found
        return None

    def _known(self, verb: str, **arguments: Any) -> Object:
        try:
            found = self._call(verb, JOBS, missing=(), **arguments)
        except SchedulerError as error:
            if UNKNOWN_KIND in str(error):
                raise SchedulerError(NO_VOLCANO) from error
            raise
        assert found
        return found

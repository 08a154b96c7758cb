"""A job to be submitted."""

from dataclasses import dataclass

from torchx.specs import AppDef

from schedulers.jobset.names import dns_name
from schedulers.jobset.options import JobSetOpts


@dataclass(frozen=True)
class Job:
    """An app with its options, and the name and the handle under which it is submitted."""

    app: AppDef
    opts: JobSetOpts
    name: str
    handle: str

    @property
    def rank0_host(self) -> str:
        """The host name of replica 0 of the first role in the headless service that JobSet creates."""
        return f"{self.name}-{dns_name(self.app.roles[0].name)}-0-0.{self.name}"

    @property
    def max_retries(self) -> int:
        """The retries of the whole job, for it restarts as a whole."""
        return max(role.max_retries for role in self.app.roles)

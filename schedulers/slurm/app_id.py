"""The id of a Slurm job in handles: its number, with its cluster and host if these are not this machine's own."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class AppId:
    """The id of a Slurm job: on the cluster of this machine or its federation, or on the one that is named.

    Attributes:
        number: Slurm's number, or NUMBER_TASK for a task of an array.
        cluster: The cluster; empty for that of the machine or of the host.
        host: The host over which the cluster is reached by SSH; empty for this machine.
    """

    number: str
    cluster: str = ""
    host: str = ""

    @classmethod
    def parse(cls, text: str) -> "AppId":
        """Returns the id that is written NUMBER, NUMBER@CLUSTER, or either after HOST and a colon."""
        host, _, there = text.rpartition(":")
        number, _, cluster = there.partition("@")
        return cls(number, cluster, host)

    def __str__(self) -> str:
        return f"{self.host}:{self.there}" if self.host else self.there

    @property
    def there(self) -> str:
        """The id as the host itself writes it."""
        return f"{self.number}@{self.cluster}" if self.cluster else self.number

    @property
    def task(self) -> str:
        """The number of the task in its array; empty for any other job."""
        return self.number.partition("_")[2]

    @property
    def whole(self) -> "AppId":
        """The array of a task; any other job itself."""
        return replace(self, number=self.number.partition("_")[0])

    def with_task(self, task: int) -> "AppId":
        """Returns the id of a task of this array."""
        return replace(self, number=f"{self.number}_{task}")

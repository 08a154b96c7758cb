"""The id of a Slurm job in handles: its number, and its cluster if it was submitted to one by name."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class AppId:
    """The id of a Slurm job: on this machine's own cluster or its federation, or on the cluster that is named.

    Attributes:
        number: Slurm's number, or NUMBER_TASK for a task of an array.
        cluster: The cluster; empty for this machine's own.
    """

    number: str
    cluster: str = ""

    @classmethod
    def parse(cls, text: str) -> "AppId":
        """Returns the id that is written NUMBER or NUMBER@CLUSTER."""
        number, _, cluster = text.partition("@")
        return cls(number, cluster)

    def __str__(self) -> str:
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

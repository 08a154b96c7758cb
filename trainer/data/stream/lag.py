"""How far training is behind a topic: by two manifests, of the newest segment and of the last that was trained on."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trainer.config.files import NAME
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import place
from trainer.core.storage import named, open_storage
from trainer.data.stream.manifest import Manifest

KEY = "data.segments.path"


class Manifests:
    """Manifests of segments by name, each of which is read once.

    Args:
        path: The value of data.segments.path.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: dict[str, Manifest] = {}

    def of(self, name: str) -> Manifest:
        """Returns the manifest of a segment.

        Raises:
            InputError: It is not there, or damaged.
            StorageError: The storage cannot be read now.
        """
        if name not in self._read:
            url = self._path.replace(NAME, name)
            with named(KEY, url):
                fs, path = open_storage(url)
                text = fs.cat_file(path)
            try:
                self._read[name] = Manifest.from_json(text)
            except ValueError as error:
                raise InputError(f"{KEY}: {place(url)} cannot be used: {error}") from error
        return self._read[name]

    def forget(self, kept: Collection[str]) -> None:
        """Forgets all manifests but some, so that a job that never ends keeps few in memory."""
        self._read = {name: manifest for name, manifest in self._read.items() if name in kept}


@dataclass(frozen=True, kw_only=True)
class Lag:
    """How far training is behind a topic.

    Attributes:
        segments: Segments that are cut, but neither trained on nor under way.
        cut_records: Offsets of these.
        uncut_records: Offsets that the topic had after the newest segment when that was cut.
        newest_event: Time of the newest event trained on, in seconds since 1970; None before there is any.
    """

    segments: int
    cut_records: int
    uncut_records: int
    newest_event: float | None

    @property
    def words(self) -> str:
        """Segments and records in words."""
        return (
            f"{plural(self.segments, 'segment')} and {plural(self.cut_records + self.uncut_records, 'record')} behind"
        )


def lag_behind(
    manifests: Manifests, names: Sequence[str], done: str | None, under_way: str | None = None
) -> Lag | None:
    """Returns how far training is behind; None if no segment is known.

    Args:
        manifests: The manifests.
        names: Names of all segments that are cut, in order.
        done: The last segment that was trained on.
        under_way: The segment that is trained on now.

    Raises:
        InputError: A manifest is not there, or damaged.
        StorageError: The storage cannot be read now.
    """
    reached = max(filter(None, (done, under_way)), default=None)
    ahead = [name for name in names if reached is None or name > reached]
    if not ahead and reached is None:
        return None
    newest = manifests.of((ahead or [reached or ""])[-1])
    base = manifests.of(reached or ahead[0]).partitions
    behind = {number: base[number].end if reached else base[number].start for number in base}
    lag = Lag(
        segments=len(ahead),
        # A partition that the topic has got since begins with offset 0.
        cut_records=sum(part.end - behind.get(number, 0) for number, part in newest.partitions.items()),
        uncut_records=newest.behind,
        newest_event=manifests.of(done).last_event if done else None,
    )
    manifests.forget([*names[-1:], *filter(None, (done, under_way))])
    return lag

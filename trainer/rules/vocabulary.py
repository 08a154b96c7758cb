"""The rule `ids = "vocabulary"`: each id in a file of a column's ids has its own row in the table."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.core.arrays import mix, splitmix64
from trainer.core.errors import InputError
from trainer.core.secrets import place, without_secrets
from trainer.core.section import MayChange
from trainer.core.storage import named, open_storage
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.hashing import hash_text, modulo, unsigned_modulo

if TYPE_CHECKING:
    from torch import Tensor

METADATA = b"vocabulary"


class VocabularyKeys(SparseKeys):
    """The key of `ids = "vocabulary"`."""

    vocabulary: Annotated[str | None, MayChange] = None
    """For ids = "vocabulary": a file that data.vocabulary made, on any fsspec URL. A resume needs the same ids, or more
    of them after those."""

    def check_vocabulary(self, key: str) -> None:
        """Refuses the rule without a file, and a file without the rule."""
        if (self.ids == "vocabulary") != (self.vocabulary is not None):
            raise InputError(
                f"{key}.ids is '{self.ids}' and {key}.vocabulary is "
                f"{'unset' if self.vocabulary is None else 'set'}; set ids to 'vocabulary' and vocabulary to a "
                "file of data.vocabulary, or neither"
            )


class Listed(IdRule):
    """Gives a listed id its row in the vocabulary, and hashes unlisted ids over other rows."""

    takes_strings = True
    lists_ids = True
    keeps_rows = True

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids."""
        return open_vocabulary(self.name, self.feature).rows_of(ids.astype(np.int64))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the ids, sorted, and their rows."""
        known = open_vocabulary(self.name, self.feature)
        return {"keys": known.keys, "rows": known.rows.astype(np.int64)}

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows of ids."""
        unseen_rows = open_vocabulary(self.name, self.feature).unseen_rows
        return look_up(ids, arrays, unsigned_modulo(splitmix64(ids), unseen_rows))


def look_up(ids: "Tensor", arrays: Mapping[str, "Tensor"], unseen: "Tensor") -> "Tensor":
    """Returns the rows of ids that are in the sorted `keys`, and the rows in `unseen` for other ids, `[N]`."""
    import torch

    keys = arrays["keys"]
    places = torch.searchsorted(keys, ids).clamp(max=keys.shape[0] - 1)
    return arrays["rows"][places].where(keys[places] == ids, unseen)


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary: the listed ids of a column. All other ids share the first rows of the table.

    Attributes:
        keys: The ids, `[N]` int64, sorted; strings are hashed.
        rows: The row of each id, `[N]` int32.
        unseen_rows: Number of rows that other ids are hashed over.
        is_text: Whether the ids are strings.
        in_order: The ids in the order of their rows, `[N]`.
        meaning: The meaning of the ids, such as dates; None if the vocabulary does not record it.
    """

    keys: np.ndarray
    rows: np.ndarray
    unseen_rows: int
    is_text: bool
    in_order: np.ndarray
    meaning: str | None = None

    @cached_property  # every save needs it
    def fingerprint(self) -> str:
        """A hash of the ids and their rows, and the number of ids."""
        return self._fingerprint(len(self.in_order))

    def extends(self, fingerprint: str) -> bool:
        """Returns whether all ids of the vocabulary with a fingerprint have the same rows here."""
        of, _, number = fingerprint.partition("-")
        count = int(number or len(self.in_order))  # earlier checkpoints do not record it
        return count <= len(self.in_order) and self._fingerprint(count).startswith(f"{of}-")

    def _fingerprint(self, ids: int) -> str:
        content = self.in_order[:ids].tobytes() + f"{self.unseen_rows} {self.is_text}".encode()
        return f"{hashlib.sha256(content).hexdigest()[:16]}-{ids}"

    @property
    def table_rows(self) -> int:
        """Rows that the table needs."""
        return self.unseen_rows + len(self.keys)

    def rows_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the rows of ids, `[K]` int64 to `[K]` int32."""
        places = np.searchsorted(self.keys, keys)
        places[places == len(self.keys)] = 0
        unseen = modulo(mix(keys), np.uint64(self.unseen_rows)).astype(np.int32)
        return np.where(self.keys[places] == keys, self.rows[places], unseen)


def open_vocabulary(name: str, feature: VocabularyKeys) -> Vocabulary:
    """Returns the vocabulary of a sparse feature; a process reads each vocabulary once.

    Raises:
        InputError: The file cannot be read, is not a vocabulary, or needs more rows than the table has.
    """
    assert feature.vocabulary is not None
    key = f"data.sparse.{name}.vocabulary"
    found = _read(key, feature.vocabulary)
    if found.table_rows > feature.rows:
        raise InputError(
            f"data.sparse.{name}.rows is {feature.rows}, but {key}, '{without_secrets(feature.vocabulary)}', needs "
            f"{found.table_rows}; set rows to at least that"
        )
    return found


def listed_ids(name: str, feature: VocabularyKeys) -> pa.Array:
    """Returns the ids of a sparse feature's vocabulary, in the order of their rows; unseen ids have earlier rows.

    Raises:
        InputError: The file cannot be read or is no vocabulary.
    """
    open_vocabulary(name, feature)  # refuses an unusable vocabulary
    with named(f"data.sparse.{name}.vocabulary", str(feature.vocabulary)):
        return read_vocabulary(str(feature.vocabulary))["id"].combine_chunks()


def fingerprints(features: Mapping[str, VocabularyKeys]) -> dict[str, str]:
    """Returns the fingerprint of the vocabulary of each sparse feature that has one."""
    return {name: known.fingerprint for name, known in vocabularies(features).items()}


def vocabularies(features: Mapping[str, VocabularyKeys]) -> dict[str, Vocabulary]:
    """Returns the vocabulary of each sparse feature that has one."""
    listed = {name: feature for name, feature in features.items() if feature.ids == "vocabulary"}
    return {name: open_vocabulary(name, feature) for name, feature in listed.items()}


def check_fingerprints(features: Mapping[str, VocabularyKeys], saved: Mapping[str, str], checkpoint: str) -> None:
    """Refuses vocabularies that give other rows to the ids of a checkpoint.

    Args:
        features: The sparse features.
        saved: The `fingerprints` in the checkpoint.
        checkpoint: URL of the checkpoint, for the message.

    Raises:
        InputError: A vocabulary differs.
    """
    for name, known in vocabularies(features).items():
        if name not in saved or not known.extends(saved[name]):
            raise InputError(
                f"data.sparse.{name}.vocabulary is '{without_secrets(features[name].vocabulary)}', whose ids have "
                f"other rows than in the checkpoint at {checkpoint}; name the vocabulary that the run began with, or "
                "one that extends it"
            )


def _read(key: str, url: str) -> Vocabulary:
    try:
        with named(key, url):
            return _load(url)
    except InputError:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{key} is {place(url)}, which is not a vocabulary; make one by `python -m trainer vocabulary`"
        ) from error


@cache
def _load(url: str) -> Vocabulary:
    table = read_vocabulary(url)
    settings = json.loads(table.schema.metadata[METADATA])
    return _vocabulary(table["id"].combine_chunks(), settings["unseen_rows"], settings.get("ids"))


def read_vocabulary(url: str) -> pa.Table:
    """Returns the ids of a vocabulary with their counts, in the order of their rows."""
    fs, path = open_storage(url)
    return pq.read_table(pa.BufferReader(fs.cat_file(path)), columns=["id", "count"])


def _vocabulary(ids: pa.Array, unseen_rows: int, meaning: str | None) -> Vocabulary:
    is_text = not pa.types.is_integer(ids.type)
    keys = hash_text(ids) if is_text else ids.to_numpy()
    if unseen_rows < 1 or not len(keys):
        raise ValueError
    order = keys.argsort(kind="stable")
    return Vocabulary(keys[order], (order + unseen_rows).astype(np.int32), unseen_rows, is_text, keys, meaning)

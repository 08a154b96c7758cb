"""Finds and loads exports on any storage, from which files are copied first: to serve them, or to list items."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchx_recsys.apps.export.directory import CURRENT, bring, read_chain, read_current, read_export
from torchx_recsys.apps.export.load import ONNX, Changes, Export, Model, load, read_changes
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named


class Source:
    """A directory of exports, or a single export.

    Args:
        url: The directory of exports, or one step-N of it, any fsspec URL.
        compiled: Whether to load compiled models.
        key: The flag that gave the URL.
    """

    def __init__(self, url: str, compiled: bool, key: str = "--directory") -> None:
        self.url, self._compiled, self._key = url, compiled, key
        self._target = RunDirectory(url, key)

    def first(self, follow: bool) -> Model:
        """Returns the model to begin with.

        Args:
            follow: Whether the directory has to be one of exports.

        Raises:
            InputError: There is no whole export, or the export cannot be served.
        """
        with named(self._key, self.url):
            if follow and self._target.read_bytes(CURRENT) is None:
                raise InputError(
                    f"--follow is True, but {self._key} is '{self.url}', which has no {CURRENT}; name the directory "
                    "that `export` writes to, or leave --follow out"
                )
            try:
                self.newest()
            except InputError:
                raise
            except ValueError:
                raise InputError(
                    f"{self._key} is '{self.url}', which holds no whole export; make one by `python -m trainer export`"
                ) from None
            try:
                return self.load(self.chain())
            except (ValueError, ImportError) as error:
                raise InputError(f"{self._key} is '{self.url}', which cannot be served: {error}") from error

    def newest(self) -> Export:
        """Returns the export that current.json names, or the single one.

        Raises:
            ValueError: The export is not whole.
        """
        return read_export(self._target.fs, self._newest())

    def chain(self) -> list[Export]:
        """Returns the chain of the newest export, the whole export first.

        Raises:
            ValueError: One of them is not whole.
        """
        return read_chain(self._target.fs, self._newest())

    def read_changes(self, exports: Sequence[Export]) -> list[Changes]:
        """Returns the changes of exports, verified and in memory.

        Raises:
            ValueError: A file is damaged.
        """
        with self._at_hand(exports) as directories:
            return [read_changes(directory, verify=True) for directory in directories]

    def load(self, chain: Sequence[Export]) -> Model:
        """Returns the model of the last export of a chain, verified.

        Raises:
            ValueError: A file is damaged, or the model cannot be served.
            ImportError: The model needs a package that is not installed.
        """
        with self._at_hand(chain) as directories:
            model = load(directories[-1], self._compiled, verify=True)
        if model.signature.get("format") == "onnx":
            raise ValueError(f"it holds {ONNX}; export with --format torch to serve it here")
        return model

    def _newest(self) -> str:
        current = read_current(self._target)
        return self._target.path(*([] if current is None else [current]))

    @contextlib.contextmanager
    def _at_hand(self, exports: Sequence[Export]) -> Iterator[list[Path]]:
        """Yields local directories of exports; models loaded from there no longer need them."""
        with tempfile.TemporaryDirectory() as folder:
            yield [bring(self._target.fs, export, Path(folder)) for export in exports]

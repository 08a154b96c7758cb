"""`python -m trainer embed-text`: adds vectors of texts, or of images, to the files of a data set.

python -m trainer embed-text --source data/mine --column title --out data/with_vectors --width 64
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pyarrow as pa
import pydantic

from torchx_recsys.apps.embed_text.encoders import HASH, PACKAGES, WIDTH, find_encoder
from torchx_recsys.apps.embed_text.files import EmbeddedFile, files_of
from torchx_recsys.apps.embed_text.vectors import Vectors
from torchx_recsys.apps.engines.progress import progress_bar
from trainer.core.console import next_commands, plural
from trainer.core.secrets import without_secrets

TYPES = {"single": pa.float32(), "half": pa.float16()}


def embed_text(
    source: tuple[str, ...],
    column: str,
    out: str,
    vector: str | None = None,
    width: pydantic.PositiveInt | None = None,
    encoder: str = HASH,
    precision: Literal["single", "half"] = "single",
    batch_size: pydantic.PositiveInt = 1024,
    overwrite: bool = False,
) -> None:
    """Writes Parquet files again, with a vector for each text of a column, for a dense feature with a width.

    OUT gets a file for each file of --source, at the same place below it, with the same rows in the same row groups,
    all columns, and the vectors as the last one, lists of a fixed size. A null has no vector. A text that comes again
    is encoded once. A file is written whole or not at all, and an interrupted job continues when it is started again.

    The encoder `hash` needs no model: it hashes words, pairs of words and n-grams of 3 to 5 letters to places of the
    vector, with a sign, and gives the vector the length 1. `sentence-transformers:MODEL` and `model2vec:MODEL` run a
    model; their packages are installed apart. A function of your own, package.module:function, takes a list of values,
    such as texts, the bytes of images, or paths of images, and returns an array with a vector for each.

    Args:
        source: Parquet files, globs or directories, on any fsspec URL.
        column: The column of texts; for a function of your own, of texts or bytes.
        out: Directory to write to, on any fsspec URL.
        vector: Name of the column of vectors. Unset: COLUMN_vector.
        width: Length of the vectors of hash. Unset: 256. A model has a length of its own.
        encoder: hash, sentence-transformers:MODEL, model2vec:MODEL, or package.module:function.
        precision: single writes float32; half writes float16, in half the room.
        batch_size: Most texts that the encoder gets at once.
        overwrite: Replace files in OUT.

    Raises:
        InputError: A file or the column cannot be used, an argument is wrong, or OUT has other files.
    """
    name = vector or f"{column}_vector"
    known = (width or WIDTH) if encoder == HASH else None
    is_own = encoder != HASH and encoder.partition(":")[0] not in PACKAGES
    make = Vectors(find_encoder(encoder, width), encoder, TYPES[precision], batch_size, known)
    about = {"column": column, "vector": name, "encoder": encoder, "width": known, "precision": precision}
    files = files_of(source, out, about, is_own)
    todo = [file for file in files if overwrite or not file.is_written()]
    if there := len(files) - len(todo):
        are = "is" if len(files) == 1 else "are"
        print(f"{there} of {plural(len(files), 'file')} {are} in {without_secrets(out)} already", flush=True)
    with progress_bar(sum(file.rows for file in todo), " rows") as bar, TemporaryDirectory() as folder:
        for file in todo:
            file.write(file.tables(column, name, make, bar.update), Path(folder, "file.parquet"))
    if todo:
        _print(todo, out, name, make)


def _print(files: Sequence[EmbeddedFile], out: str, vector: str, made: Vectors) -> None:
    """Prints what was written, the keys of the feature, and the next command."""
    rows = sum(file.rows for file in files)
    print(
        f"{plural(rows, 'row')} in {plural(len(files), 'file')} of {without_secrets(out)}, with vectors of "
        f"{plural(made.encoded, 'value')} that the encoder got"
    )
    print(f"\n[data.dense]\n{vector} = {{ width = {made.width} }}\n")
    print(next_commands(["python", "-m", "trainer", "check-data", "--source", out]), flush=True)

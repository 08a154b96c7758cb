"""Encoders: functions from texts, or other values, to vectors. One is built in, which needs no model."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from trainer.core.arrays import mix
from trainer.core.errors import InputError, nearest
from trainer.core.registry import find_by_name

Encoder = Callable[[list[Any]], Any]
"""Returns the vectors of values of a column, texts or bytes: an array of numbers, `[N, width]`."""

HASH = "hash"
PACKAGES = {"sentence-transformers": "sentence_transformers", "model2vec": "model2vec"}
"""The packages that run models, each with its module."""
WIDTH = 256
WORD, BLANK, NEWLINE = re.compile(r"\w+"), ord(" "), ord("\n")
GRAMS = (3, 4, 5)  # lengths in bytes
FACTOR = 0x9E3779B97F4A7C15  # of the polynomial; odd, so that there is an inverse modulo 2^64


def find_encoder(name: str, width: int | None) -> Encoder:
    """Returns an encoder by name.

    Args:
        name: hash, sentence-transformers:MODEL, model2vec:MODEL, or package.module:function.
        width: Length of the vectors of hash. Unset: 256. Those of other encoders have a length of their own.

    Raises:
        InputError: There is no such encoder, or its package is not installed.
    """
    if name == HASH:
        return partial(hashed_texts, width=width or WIDTH)
    kind, _, model = name.partition(":")
    if not model or (kind not in PACKAGES and "/" in name):
        known = [HASH, *(f"{package}:MODEL" for package in PACKAGES)]
        raise InputError(f"--encoder is '{name}'{nearest(name, known, 'name your own as package.module:function')}")
    if width:
        raise InputError(f"--width is {width}, but --encoder '{name}' has a width of its own; leave --width out")
    return _of_package(kind, model) if kind in PACKAGES else find_by_name("--encoder", name, {})


def _of_package(kind: str, model: str) -> Encoder:
    try:
        package = import_module(PACKAGES[kind])
    except ImportError as error:
        raise InputError(f"--encoder is '{kind}:{model}', which needs a package; pip install {kind}") from error
    if kind == "model2vec":
        return package.StaticModel.from_pretrained(model).encode
    encode = package.SentenceTransformer(model).encode
    return partial(encode, normalize_embeddings=True, show_progress_bar=False)


def hashed_texts(texts: Sequence[str], width: int) -> np.ndarray:
    """Hashes words, pairs of words and n-grams of letters to places with signs (Weinberger et al., ICML 2009).

    Case does not count, and Unicode's form is NFKC. The words of a text, its pairs of adjacent words, and the n-grams
    of 3, 4 and 5 bytes of its words with blanks around them make a vector of length 1 each. Their sum, of length 1
    again, is the text's vector; that of a text without words is zero.

    Args:
        texts: The texts, `N`.
        width: Length of the vectors.

    Returns:
        The vectors, `[N, width]` float64.
    """
    words = (WORD.findall(unicodedata.normalize("NFKC", text).casefold()) for text in texts)
    lines = (f" {' '.join(some)} \n" if some else "\n" for some in words)
    content = np.frombuffer("".join(lines).encode(errors="surrogatepass"), np.uint8)
    hashed, lengths = _ranges(content), np.cumsum(content == NEWLINE)
    ends = np.flatnonzero((content == BLANK) | (content == NEWLINE))
    begins = np.append(0, ends[:-1] + 1)
    begins, ends = begins[begins < ends], ends[begins < ends]
    pairs = np.flatnonzero(lengths[begins[1:]] == lengths[begins[:-1]])
    found = np.zeros((len(texts), width))
    kinds = [(begins, ends), (begins[pairs], ends[pairs + 1]), _grams(content, lengths)]
    for kind, (begin, end) in enumerate(kinds):
        bits = mix(hashed(begin, end) + np.uint64(kind))
        places = lengths[begin] * width + (bits % np.uint64(width)).astype(np.int64)
        signs = 1.0 - 2.0 * (bits >> np.uint64(63)).astype(np.float64)
        found += _of_length_1(np.bincount(places, signs, len(texts) * width).reshape(len(texts), width))
    return _of_length_1(found)


def _grams(content: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the n-grams within a line begin and end; `lines` counts the ends of lines up to each byte."""
    begins, ends = [], []
    for length in GRAMS:
        begin = np.arange(max(0, len(content) - length + 1))
        before = lines[begin] - (content[begin] == NEWLINE)
        begin = begin[lines[begin + length - 1] == before]
        begins.append(begin)
        ends.append(begin + length)
    return np.concatenate(begins), np.concatenate(ends)


def _ranges(content: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function that hashes ranges of bytes, by a polynomial modulo 2^64 whose prefix sums are made once."""

    def powers(base: int) -> np.ndarray:
        return np.cumprod(np.append(np.uint64(1), np.full(len(content), base, np.uint64)), dtype=np.uint64)

    shifts, terms = powers(pow(FACTOR, -1, 1 << 64)), (content + np.uint64(1)) * powers(FACTOR)[:-1]
    sums = np.append(np.uint64(0), np.cumsum(terms, dtype=np.uint64))
    return lambda begin, end: (sums[end] - sums[begin]) * shifts[begin]


def _of_length_1(vectors: np.ndarray) -> np.ndarray:
    norms = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return vectors / np.where(norms > 0, norms, 1.0)

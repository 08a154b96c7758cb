"""`python -m trainer cut-stream`: cuts a topic of Kafka into segments, which training takes one after the other.

python -m trainer cut-stream stream.toml --follow True
"""

import posixpath

from torchx_recsys.apps.cut_stream.cutter import Cutter
from torchx_recsys.apps.cut_stream.manifests import ManifestDirectory
from torchx_recsys.apps.cut_stream.start import start_seconds
from torchx_recsys.apps.cut_stream.stop import Stopped, StopRequests
from trainer.config.root import Config
from trainer.config.stream import StreamConfig
from trainer.core.console import next_commands, plural
from trainer.core.errors import InputError
from trainer.core.outcome import FINISHED_WORD, STOPPED_WORD, write_outcome
from trainer.core.secrets import without_secrets


def cut_stream(
    config: Config,
    config_words: list[str] | None = None,
    follow: bool = False,
    most: int | None = None,
    rest: bool = False,
) -> None:
    """Cuts the topic in [data.stream] into segments, each a manifest in data.segments.path. CONFIG is a TOML file.

    A segment ends as data.stream.every_records, every_seconds or marker says. A job that was stopped or killed goes on
    where the newest manifest ends, so that each record is in one segment. Records without a value count, too.

    With data.stream.archive, copies are in the temporary directory of this host until their segment is cut.

    Args:
        config: The configuration, which names the topic and the directory of the segments.
        config_words: The configuration and its overrides as typed.
        follow: Wait for more records until the job is stopped, in place of ending with those that the topic has.
        most: Most segments to cut. Unset: no limit.
        rest: At the end, cut a last segment that is not full, too.

    Raises:
        InputError: The configuration cannot be used, the topic no longer has the next records, one of them cannot be
            read, or another cutter writes to the directory.
        StorageError: The brokers do not answer.
    """
    _check(config.data.stream, follow, most, rest)
    directory = ManifestDirectory(config.data)
    stop = StopRequests()
    cutter = None
    with directory.locked():
        try:
            cutter = Cutter(config.data, directory, stop.check)
            cutter.run(follow, most, rest)
            left = cutter.left()
        except Stopped:
            print(f"stopped: {cutter.left() if cutter else 'nothing was read'}; the same command goes on", flush=True)
            write_outcome(f"{STOPPED_WORD}, segments are in {directory.url}")
            raise
        finally:
            if cutter:
                cutter.close()
    print(f"{plural(cutter.done, 'segment')} in {without_secrets(directory.run.url)}; {left}")
    if config_words:
        run = posixpath.splitext(posixpath.basename(config_words[0]))[0]
        words = ["python", "-m", "trainer", "train", *config_words, "--out", f"runs/{run}"]
        print(f"\n{next_commands(words)}", flush=True)
    write_outcome(f"{FINISHED_WORD}: {plural(cutter.done, 'segment')}")


def _check(config: StreamConfig, follow: bool, most: int | None, rest: bool) -> None:
    """Raises InputError if flags or keys do not go together, before anything is read."""
    if most is not None and most < 1:
        raise InputError(f"--most is {most}; it must be at least 1")
    if rest and (follow or config.marker is not None):
        other = "--follow is True, and such a job has no end" if follow else "data.stream.marker ends segments"
        raise InputError(f"--rest is True, but {other}; leave one out")
    if config.topic and not (config.every_records or config.every_seconds or config.marker is not None):
        raise InputError(
            "data.stream.every_records, data.stream.every_seconds and data.stream.marker are unset, so that no segment "
            "would end; set one"
        )
    start_seconds(config)

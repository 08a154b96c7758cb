"""`python -m trainer.launch FLAGS -m trainer WORDS`: torchrun, for ranks that run the trainer."""
# An interrupt is to be quiet from the first line on, also while torch is imported.

import gc

from trainer.core.interrupts import default_to_quiet
from trainer.core.own_modules import find_own_first, run_copy_here

if __name__ == "__main__":
    gc.disable()  # until all is imported, see `import_quickly`
    default_to_quiet()
    run_copy_here()
    find_own_first()

import io
import sys
from contextlib import redirect_stdout, suppress
from importlib import metadata

from trainer.commands import import_quickly, read_command
from trainer.config.root import Config
from trainer.core.console import quiet_libraries
from trainer.core.errors import InputError
from trainer.core.missing_home import settle
from trainer.forked_ranks import RankTemplate


def main(arguments: list[str]) -> int:
    """Runs the ranks of this node and returns the exit code: 2 for wrong input, else 1 if they failed or were stopped.

    Args:
        arguments: The arguments of torchrun.
    """
    settle()
    words = _words_of_ranks(arguments)
    template = _template(words) if words is not None and _may_fork() else None
    return import_quickly("trainer.run_ranks").run_ranks(arguments, template)


def _words_of_ranks(arguments: list[str]) -> list[str] | None:
    """Returns the trainer's arguments on the ranks; None if torchrun's arguments are wrong or end before them."""
    for start in range(len(arguments)):
        if arguments[start : start + 2] == ["-m", "trainer"]:
            return arguments[start + 2 :]
    return None


def _may_fork() -> bool:
    """Returns whether this is torch for the CPU only.

    A process forked from one that has used CUDA cannot use it, not even if that was a library that was imported and
    looked for a device. Hosts with GPUs also have the cores to import once for each rank.
    """
    return metadata.version("torch").endswith("+cpu")


def _template(words: list[str]) -> RankTemplate:
    """Returns the template of ranks that run the trainer, with all imports, unless the words are wrong."""
    quiet_libraries()
    # Errors in the words, and help, are left to the ranks, which report them with their prefix and to the scheduler.
    with suppress(InputError, SystemExit), redirect_stdout(io.StringIO()):
        command = read_command(words)
        _import_model(command.keywords.get("config"))
    return RankTemplate()


def _import_model(config: Config | None) -> None:
    """Imports the model of a configuration, unless it is the user's own, which each rank imports in its own way."""
    if config and (place := import_quickly("trainer.models.builder").MODELS.get(config.model.name)):
        import_quickly(place.partition(":")[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

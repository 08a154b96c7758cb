"""`python`, `torchrun` and `torchx` for shells of tests, forked from a process which has imported torch and TorchRec.

Each is a program in a folder that a shell has first in its PATH. The program asks the test for a process, which has its
directory, environment and output, hands on the signals that reach it, and ends as the process does.
"""

import json
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forked import start_forked, torchrun, torchx, trainer

PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
module = [word for word in words[:3] if word != "-P"][:2]
if name == "python" and module not in (["-m", "trainer"], ["-m", "trainer.launch"]):
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
asked = [os.getpid(), os.getcwd(), name, words[words[:1] == ["-P"]:], dict(os.environ)]
server.sendall(json.dumps(asked).encode() + b"\\n")
code = int(server.makefile().readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def forked_programs(folder: Path) -> Iterator[Path]:
    """Yields a folder for the PATH of a shell, which has `python`, `torchrun` and `torchx`."""
    address = str(folder / "socket")
    with socketserver.ThreadingUnixStreamServer(address, _Start) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        programs = folder / "bin"
        programs.mkdir()
        for name in ("python", "torchrun", "torchx"):
            (programs / name).write_text(PROGRAM.format(python=sys.executable, address=address))
            (programs / name).chmod(0o755)
        try:
            yield programs
        finally:
            server.shutdown()


class _Start(socketserver.StreamRequestHandler):
    """Starts a process, and answers with its exit code."""

    def handle(self) -> None:
        pid, folder, name, words, environment = json.loads(self.rfile.readline())
        output, errors = (Path(f"/proc/{pid}/fd/{stream}") for stream in (1, 2))
        streams = {"output": output, "errors": errors}
        process = start_forked(_run, name, words, environment=environment, folder=Path(folder), **streams)

        def hand_on() -> None:
            with suppress(OSError, ValueError):
                while sent := self.connection.recv(1):
                    process.send_signal(signal.Signals(sent[0]))
            with suppress(OSError):
                process.kill()  # the program was killed

        threading.Thread(target=hand_on, daemon=True).start()
        code = process.wait()
        with suppress(OSError):
            self.wfile.write(f"{code}\n".encode())


def _run(name: str, words: list[str]) -> None:
    if name == "torchx":
        torchx(*words)
    elif name == "torchrun":
        torchrun(*words)
    elif words[1] == "trainer":
        trainer(*words[2:])
    else:
        torchrun(*words[2:])

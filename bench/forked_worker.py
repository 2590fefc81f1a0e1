"""The training process without the seconds that loading torch takes.

``python -m bench.forked_worker SOCKET ARG…`` stands in for ``python -m learner.worker ARG…``: it
hands its arguments and standard streams to the process that listens at the socket and has loaded
everything, which does the work in a fork. It ends as the fork ends, and ends the fork when it is
told to end.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

STREAMS = (0, 1, 2)
MAX_BYTES = 65_536


def main() -> int:
    """Let the work be done elsewhere; return its exit status."""
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as work:
        work.connect(path)
        socket.send_fds(work, [json.dumps(arguments).encode()], STREAMS)
        pid = int(work.recv(MAX_BYTES))
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
        for stream in STREAMS:
            os.close(stream)
        return int(work.recv(MAX_BYTES))


def listen(path: Path) -> socket.socket:
    """Return what ``serve`` waits at."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    return listener


def serve(listener: socket.socket) -> NoReturn:
    """Work for whoever connects, each in a fork, until killed; this process may have no threads."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the work
    while True:
        work, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _do(work)
        work.close()


def _do(work: socket.socket) -> NoReturn:
    """Do one worker's work in a fork of this process, tell its id and then its status."""
    told, streams, _, _ = socket.recv_fds(work, MAX_BYTES, len(STREAMS))
    pid = os.fork()
    if pid == 0:
        work.close()
        for given, stream in zip(streams, STREAMS, strict=True):
            os.dup2(given, stream)
            os.close(given)
        _work(json.loads(told))
    for given in streams:
        os.close(given)
    try:
        work.send(str(pid).encode())
    except BrokenPipeError:  # whoever connected was killed meanwhile
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        work.send(str(status & 0xFF).encode())
    os._exit(0)


def _work(arguments: list[str]) -> NoReturn:
    from learner import worker  # loaded before the fork; whoever only connects needs none of it

    status = 1
    try:
        status = worker.main(arguments)
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

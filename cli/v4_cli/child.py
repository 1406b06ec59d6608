"""Runs a command that cannot outlive its parent: `python child.py PARENT_PID COMMAND ARGUMENT...`.

A small program of its own, since code between fork and exec is unsafe in a parent with threads. It asks Linux to kill
this process when the parent ends in any way, then becomes the command. Elsewhere it only becomes the command. Imports
the standard library alone: it is started without site packages, which takes milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            sys.exit(f"cannot bind this process to its parent: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != parent:  # it ended before the call above
            sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

"""A program that runs a command which cannot outlive its parent: `python child.py PARENT_PID COMMAND ARGUMENT...`.

It is a separate program because running Python code between fork and exec is unsafe in a parent with threads. On Linux
it asks the kernel to kill this process when the parent ends for any reason; then, on every system, it replaces itself
with the command. It imports only the standard library, so that it can be started without site packages, which takes a
few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs the command in place of this process."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != parent:  # the parent ended before the call above, so no signal will come
            sys.exit("the parent process has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

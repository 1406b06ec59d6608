"""Runs a program in a pseudo-terminal, for tests."""

import os
import pty
import re
import subprocess
import sys
import termios
import threading

# As a shell does, makes the terminal the program's controlling terminal, so that Ctrl-C reaches the program.
_IN_TERMINAL = [
    sys.executable, "-c", "import os, sys; os.login_tty(os.dup(0)); os.execv(sys.argv[1], sys.argv[1:])",
]  # fmt: skip


class Terminal:
    """A program in a terminal of 80 by 24."""

    def __init__(self, *command: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self._before = termios.tcgetattr(self.master)
        self.restored = False  # whether the terminal's modes are as before; set when it is closed
        env = {**os.environ, "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        self.process = subprocess.Popen([*_IN_TERMINAL, *command], stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.output = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while True:
            try:
                self.output += os.read(self.master, 65536)
            except OSError:  # the program has ended
                return

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output.decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> int:
        """Waits for the program's end, and returns its exit code."""
        code = self.process.wait(30)
        self._reading.join(10)
        self.restored = termios.tcgetattr(self.master) == self._before
        os.close(self.master)
        return code

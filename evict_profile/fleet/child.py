"""The command line in a process that ends with the one that started it.

A task that is killed on a node leaves no sweep behind, which would measure for nobody
and disturb the clock of what comes next. A runner ends with its sweep likewise.
"""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""


def main() -> None:
    """Run `evict-profile` with the words of the command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    from evict_profile.cli import app

    app()


if __name__ == "__main__":
    main()

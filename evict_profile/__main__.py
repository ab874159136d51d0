"""The `evict-profile` command, also as `python -m evict_profile`."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C while it loads ends it as it does later."""
    try:
        from evict_profile.cli import main as run
        from evict_profile.fleet.child import DIES_WITH_PARENT

        if os.environ.pop(DIES_WITH_PARENT, "") and sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        run()
    except KeyboardInterrupt:
        print("interrupted; no file is left half written", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()

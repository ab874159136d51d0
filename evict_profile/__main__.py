"""Run as `python -m evict_profile`, the same as the `evict-profile` command."""

import ctypes
import os
import signal
import sys

from evict_profile.cli import main
from evict_profile.fleet.child import DIES_WITH_PARENT

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""

if os.environ.pop(DIES_WITH_PARENT, "") and sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
main()

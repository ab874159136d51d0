"""What the repository ships, whatever commands have left in a checkout beside it."""

import subprocess
from pathlib import Path

from evict_profile.io import data_root


def tracked(*patterns: str) -> list[Path]:
    """The files that git tracks, by patterns in which * also stands for folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=data_root(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [data_root() / name for name in sorted(filter(None, listed.split("\0")))]

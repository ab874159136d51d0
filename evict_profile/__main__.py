"""Run as `python -m evict_profile`, the same as the `evict-profile` command."""

from evict_profile.cli import main

main()

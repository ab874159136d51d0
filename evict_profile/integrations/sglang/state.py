"""What a server learnt, in a file that outlives it: EVICT_PROFILE_STATE."""

import logging
import time
from pathlib import Path

from evict_profile.errors import EvictProfileError
from evict_profile.io import write_json
from evict_profile.records import parse, read_mapping, to_mapping
from evict_profile.runtime.learning import Learner, Learnt

SAVE_EVERY_S = 60.0
OFF = Path("off")
"""Instead of a path: nothing is learnt, so equal requests give equal plans."""

logger = logging.getLogger("evict_profile.sglang")


class StateFile:
    """The file of one table; what was learnt with another table stays there."""

    def __init__(self, path: Path, table_sha256: str) -> None:
        self._path, self._table_sha256 = path, table_sha256
        self._due_s = time.monotonic() + SAVE_EVERY_S
        self._owned = True

    def restore(self, learner: Learner) -> None:
        """Go on from the file, if it is there and of this table."""
        if not self._path.exists():
            return
        try:
            learnt = parse(Learnt, read_mapping(self._path), str(self._path))
        except EvictProfileError as error:
            self._leave(str(error))
            return
        if learnt.table_sha256 != self._table_sha256:
            self._leave(f"{self._path}: was learnt with another table")
            return
        learner.restore(learnt)

    def save_when_due(self, learner: Learner) -> None:
        """Write the file once a minute, under another name first."""
        if not self._owned or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + SAVE_EVERY_S
        try:
            write_json(to_mapping(learner.learnt(self._table_sha256)), self._path)
        except (EvictProfileError, OSError) as error:
            self._leave(str(error))

    def _leave(self, why: str) -> None:
        self._owned = False
        logger.warning(
            "evict-profile: %s; nothing is saved there, name another file in "
            "EVICT_PROFILE_STATE",
            why,
        )

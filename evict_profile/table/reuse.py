"""A statement that a table may serve another version of its engine, by name.

Between releases of one engine on one GPU a third to a half of all costs moved by more
than 10 %, so a table of another version is refused. Whoever has looked may say in the
table itself that it still holds: for which version, who says so, why, and by which
recheck. The table's hash covers it, and every price that rests on it carries it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from evict_profile.table.parts import Caveats, Key


class Reuse(Struct, frozen=True):
    """One statement.

    Attributes:
        engine_version: the version that the table may serve as well.
        who: answers for it.
        why: the reason to believe it.
        recheck: what was measured again, when, and what it said.
        stated: the day, as 2026-11-22.
    """

    engine_version: str
    who: str
    why: str
    recheck: str
    stated: str

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name).strip():
                raise ValueError(f"reuse.{name} must say something")

    def __str__(self) -> str:
        return (
            f"reused for {self.engine_version}, says {self.who} on {self.stated}: "
            f"{self.why} (recheck: {self.recheck})"
        )


def misses(
    key: Key, statements: Sequence[Reuse], running: Mapping[str, Any]
) -> tuple[tuple[str, ...], Caveats]:
    """How what runs differs from a key, and the statement that bridges versions."""
    missed = key.misses(running)
    for each in statements:
        if missed and each.engine_version == running.get("engine_version"):
            same = {**running, "engine_version": key.engine_version}
            return key.misses(same), (str(each),)
    return missed, ()

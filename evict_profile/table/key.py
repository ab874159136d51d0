"""What a table covers, and which other versions of its engine it may serve.

Between releases of one engine on one GPU a third to a half of all costs changed by more
than 10 %, so a table of another version is refused, unless a `Reuse` in the table
states that it holds. Every cost that rests on such a statement carries it as a caveat.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from evict_profile.records import Facts, differences, parse

Caveats = tuple[str, ...]
COMPOSED, SERVED = "composed", "served"
"""Graph modes of tables that no sweep measured."""
ROOFLINE = "roofline"
NOT_STATED = "not stated"
"""A fact of a served table's key that no run states."""


class Key(Struct, frozen=True):
    """What a table covers. Lookup is exact on every field."""

    gpu: str
    model: str
    dtype: str
    tp: int
    ep: int
    engine: str
    engine_version: str
    attention_backend: str
    moe_backend: str
    graph_mode: str

    @classmethod
    def of(cls, facts: Facts) -> "Key":
        named = {"gpu": facts.get("device"), **facts}
        own = {name: named[name] for name in cls.names() if name in named}
        return parse(cls, own, "the runner's facts")

    @property
    def where(self) -> str:
        """The device as pages name it, with a word where nothing was measured on it."""
        if self.engine == ROOFLINE:
            return f"{self.gpu}, computed from a data sheet, not measured"
        composed = self.graph_mode == COMPOSED
        return self.gpu + ", composed from public rows, not measured" * composed

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__

    def mismatches(self, running: Mapping[str, Any]) -> tuple[str, ...]:
        """How what runs differs: "tp: 2 here, 1 there". Other facts do not matter."""
        own = asdict(self)
        here = {name: running[name] for name in own if name in running}
        return tuple(differences(here, own))


class Reuse(Struct, frozen=True):
    """A statement that a table may serve another version of its engine.

    `recheck` says what was measured again, when, and with which result.
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


def mismatches(
    key: Key, statements: Sequence[Reuse], running: Mapping[str, Any]
) -> tuple[tuple[str, ...], Caveats]:
    """How what runs differs from a key, and the statement that bridges versions."""
    missed = key.mismatches(running)
    for each in statements:
        if missed and each.engine_version == running.get("engine_version"):
            same = {**running, "engine_version": key.engine_version}
            return key.mismatches(same), (str(each),)
    return missed, ()

"""What a table covers: this very engine on this very device.

Between releases of one engine on one GPU a third to a half of all costs changed by more
than 10 %, so a table of another version is refused.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from evict_profile.records import Facts, differences, parse

Caveats = tuple[str, ...]
COMPOSED = "composed"
"""Graph mode of tables that no sweep measured."""
ROOFLINE = "roofline"


class Key(Struct, frozen=True):
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
        values = {name: named[name] for name in cls.names() if name in named}
        return parse(cls, values, "the runner's facts")

    @property
    def where(self) -> str:
        """The device as pages name it."""
        if self.engine == ROOFLINE:
            return f"{self.gpu}, computed from a data sheet, not measured"
        composed = self.graph_mode == COMPOSED
        return self.gpu + ", composed from public rows, not measured" * composed

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__

    def mismatches(self, running: Mapping[str, Any]) -> tuple[str, ...]:
        """How what runs differs: "tp: 2 here, 1 there"."""
        facts = asdict(self)
        here = {name: running[name] for name in facts if name in running}
        return tuple(differences(here, facts))

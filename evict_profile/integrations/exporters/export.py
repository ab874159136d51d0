"""What every format has: a document, its notes on what was lost, how to run it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.errors import ConfigError, TableError
from evict_profile.table import CostTable, Staircase

MAX_DRAFT_MS = 60_000.0
"""No drafting step takes a minute: a longer one was given in another unit."""


@dataclass(frozen=True)
class ExportOptions:
    """What a format may need beside the table.

    Attributes:
        context: a context of the table; None takes its smallest.
        draft_ms: time of one drafting step, which the table does not hold.
        lengths: the acceptance that a schedule is made for.
        level_ms: time to draft one token more, for a schedule.
        most_requests: that the engine runs at once; a table must price them.
        most_tokens: that the engine verifies at once; likewise.
        trace: that the acceptance is of, for rules that look at each draft.
        draft_table: of the draft model's GGUF, for llama.cpp.
    """

    context: int | None = None
    draft_ms: float | None = None
    lengths: AcceptedLengths | None = None
    level_ms: float | None = None
    most_requests: int | None = None
    most_tokens: int | None = None
    trace: Path | None = None
    draft_table: Path | None = None

    def __post_init__(self) -> None:
        if self.draft_ms is not None and not 0.0 < self.draft_ms <= MAX_DRAFT_MS:
            raise ConfigError(
                f"--draft-ms {self.draft_ms:g} is no time of a drafting step; give "
                f"milliseconds above 0 and at most {MAX_DRAFT_MS:g}"
            )


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads.
        notes: what this format lost of this table, one sentence each.
        command: runs the system with it, called FILE; empty where there is none.
        style: how the file is written; YAML holds the notes as comments.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...]
    command: str = ""
    style: Literal["json", "yaml"] = "json"


def staircases_at(table: CostTable, context: int | None) -> tuple[Staircase, ...]:
    """The staircases at one context, by default the smallest; smallest batch first.

    Raises:
        TableError: no such context, or the steps hold more than verification.
    """
    contexts = sorted({stairs.context for stairs in table.staircases})
    wanted = contexts[0] if context is None else context
    if wanted not in contexts:
        raise TableError(
            f"no staircase at context {wanted}; this table has context "
            f"{', '.join(map(str, contexts))}: name one of them with --context"
        )
    found = [stairs for stairs in table.staircases if stairs.context == wanted]
    if any(stairs.includes != ("verify",) for stairs in found):
        raise TableError(
            f"the staircases at context {wanted} hold more than verification, which "
            "this exporter cannot take apart; use a table of verification alone"
        )
    return tuple(sorted(found, key=lambda stairs: stairs.batch))

"""A schedule of draft lengths as it was chosen, for whoever reads the file of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor, schedule
from evict_profile.advice.drafting import DraftCost
from evict_profile.integrations.exporters import Export, ExportOptions, write_format
from evict_profile.io import data_root
from evict_profile.table import CostTable


@dataclass(frozen=True)
class Written:
    """An exported schedule.

    Attributes:
        content: of the file.
        chosen: drafts by batch; none for the first batch that is not priced.
    """

    path: Path
    made: Export
    content: Any
    chosen: dict[int, int]


def shipped_table(name: str) -> CostTable:
    """A composed table of the repository, by its path below the composed ones."""
    return CostTable.load(
        data_root() / "cost_tables" / "composed" / name / "1.0.0.json"
    )


def write_schedule(table: CostTable, name: str, path: Path, rate: float) -> Written:
    """A table's schedule where each draft is accepted at this rate."""
    lengths = of_rate(rate)
    made = write_format(table, name, path, ExportOptions(lengths=lengths))
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    advisor = Advisor(table, lengths, DraftCost(table), min(table.axes.context))
    longest = schedule(advisor)[0].drafts if name == "trtllm-schedule" else None
    chosen = {
        batch: each.drafts
        for each in schedule(advisor, longest)
        for batch in range(each.first, each.last + 1)
    }
    return Written(path, made, content, chosen | {advisor.largest + 1: 0})

"""Recordings side by side are what one recording of all would be."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evict_profile.budgets.load import joined, load_budgets
from evict_profile.budgets.schema import BUDGETS, MASS, NONE, STATIC, Setting
from evict_profile.errors import TraceError
from tests.budgets.synthetic import ABOUT, both, setting, table_of, write

PLAIN, MASS_8, STATIC_8 = (
    setting(NONE),
    setting(MASS, 8, 40.0),
    setting(STATIC, 8, 10.0),
)


def recording(*settings: Setting, reference_us: float = 100.0, **more: Any) -> pa.Table:
    """One prompt under some settings."""
    found = [row for each in settings for row in both(each, kl=len(each.rule) / 8.0)]
    about = replace(ABOUT, reference_us=reference_us)
    recorded = {"prompts": 1, "rules": [each.rule for each in settings]}
    return table_of(found, settings, about, recorded={**recorded, **more})


def test_two_are_as_one() -> None:
    """The steps of each setting, once; without a budget is kept of the first."""
    first, other = recording(PLAIN, MASS_8), recording(PLAIN, STATIC_8)
    whole = joined([("a", first), ("b", other)])
    assert whole.equals(recording(PLAIN, MASS_8, STATIC_8), check_metadata=False)
    told = json.loads(whole.schema.metadata[BUDGETS.key])
    names = [(each["rule"], each["budget"]) for each in told["settings"]]
    assert names == [(NONE, 32), (MASS, 8), (STATIC, 8)]


def test_times_are_told_by_the_first_ones_reference() -> None:
    """The other's machine was twice as slow then."""
    slow = recording(PLAIN, STATIC_8, reference_us=200.0)
    told = joined([("a", recording(PLAIN, MASS_8)), ("b", slow)]).schema.metadata[
        BUDGETS.key
    ]
    assert [s["routing_us"] for s in json.loads(told)["settings"]] == [0.0, 40.0, 5.0]


def test_without_a_reference_times_are_taken_as_they_are() -> None:
    """There is nothing to go by."""
    none = recording(PLAIN, STATIC_8, reference_us=0.0)
    told = joined([("a", recording(PLAIN, MASS_8)), ("b", none)]).schema.metadata[
        BUDGETS.key
    ]
    assert json.loads(told)["settings"][-1]["routing_us"] == 10.0


def test_files_are_read_together(tmp_path: Path) -> None:
    """As the command is given them."""
    paths = [
        write(tmp_path / "a.parquet", recording(PLAIN, MASS_8)),
        write(tmp_path / "b.parquet", recording(PLAIN, STATIC_8)),
    ]
    assert [s.name for s in load_budgets(*paths).settings] == [
        "none",
        "mass 8",
        "static 8",
    ]


def test_other_prompts_are_refused(tmp_path: Path) -> None:
    """What differs is named; rules may."""
    other = recording(PLAIN, STATIC_8, prompts=2)
    with pytest.raises(
        TraceError, match=r"b: is not of the prompts of a \(prompts: 2 here, 1"
    ):
        joined([("a", recording(PLAIN, MASS_8)), ("b", other)])

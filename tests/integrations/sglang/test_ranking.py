"""A cut keeps the nodes that its width was priced for."""

from pathlib import Path
from typing import Any

import pytest

from evict_profile.integrations.sglang import compat, worker
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Plan
from tests.integrations.sglang.server import WIDTH, Batch, Context, start

LADDER = tuple(range(2, WIDTH + 1))


@pytest.mark.parametrize("conditional", [True, False])
def test_decided_cuts_keep_what_the_plan_keeps(
    full_table: CostTable,
    sglang: Context,
    monkeypatch: pytest.MonkeyPatch,
    conditional: bool,
) -> None:
    """By conditional acceptance where the table has it, by probability otherwise."""
    table = full_table
    if not conditional:
        table = replace(table, acceptance=None)
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: table)
    plans: list[Plan] = []
    cuts: list[tuple[Drafted, Drafted]] = []
    choose, cut = Chooser.choose, worker.cut

    def chosen(self: Chooser, *given: Any) -> Any:
        choice = choose(self, *given)
        plans.append(choice.plan)
        return choice

    def kept(drafted: Drafted, width: int, worth: Any) -> Drafted:
        assert (worth is not None) is conditional
        cuts.append((drafted, cut(drafted, width, worth)))
        return cuts[-1][1]

    monkeypatch.setattr(Chooser, "choose", chosen)
    monkeypatch.setattr(worker, "cut", kept)
    # Every width is captured, so that a plan is not rounded up.
    server = start(Settings("on", table=Path("t.json"), ladder=LADDER))
    for _ in range(12):
        server.forward_batch_generation(Batch(2))
    assert server.evict_profile.follows
    cut_plans = [plan for plan in plans if 1 < int(plan.widths[0]) < WIDTH]
    assert len(cut_plans) == len(cuts) > 0
    for plan, (drafted, now) in zip(cut_plans, cuts, strict=True):
        for row in range(2):
            mine = drafted.index[row][plan.keep[row]].tolist()
            # A width of 2 is verified where nothing at all pays.
            assert now.index[row].tolist() == mine or not mine

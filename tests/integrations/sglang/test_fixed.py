"""A fixed width verifies what is worth most, and decides nothing."""

from pathlib import Path

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import compat
from evict_profile.integrations.sglang.fixed import check_fixed
from evict_profile.integrations.sglang.ranking import Ranking
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import cut
from evict_profile.records import replace
from evict_profile.runtime import Calibration, CostTable, Truncator
from tests.integrations.sglang.drafter import drafting
from tests.integrations.sglang.server import WIDTH, Batch, Context, start


@pytest.mark.parametrize("width", [2, 5, 9])
def test_it_keeps_what_the_runtimes_fixed_objective_keeps(
    full_table: CostTable, width: int
) -> None:
    """Ranked on the device of the trees."""
    ranking = Ranking(full_table.acceptance.conditional, 3)
    truncator = Truncator(
        drafts="topk",
        acceptance="target-only",
        objective="fixed",
        width=width,
        depth=3,
        calibration=Calibration.by(full_table.acceptance.conditional),
    )
    for seed in range(20):
        drafted = drafting(seed, 2, 3, 3).drafted(16)
        kept = cut(drafted, width, ranking.worth(drafted))
        plan = truncator.plan(drafted.path_prob, 0, parent=drafted.parent)
        assert kept.width == width
        for row in range(2):
            assert (
                kept.index[row].tolist() == drafted.index[row][plan.keep[row]].tolist()
            )


@pytest.mark.parametrize(
    ("width", "lacks", "says"),
    [
        (17, False, "the server drafts 16 tokens"),
        (4, True, "has none; measure it with evict-profile calibrate"),
    ],
)
def test_what_cannot_be_fixed_is_refused(
    full_table: CostTable, width: int, lacks: bool, says: str
) -> None:
    """When the server starts, with what to do."""
    table = full_table
    if lacks:
        table = replace(table, acceptance=replace(table.acceptance, conditional=None))
    with pytest.raises(ConfigError, match=says):
        check_fixed(table, width, 16)


@pytest.mark.parametrize("width", [1, 4, WIDTH])
def test_every_step_verifies_so_many_with_its_graphs(
    full_table: CostTable,
    sglang: Context,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    """One state of graphs, whatever the batch, and nothing is fetched."""
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)
    worker = start(Settings("on", table=Path("t.json"), width=width))
    monkeypatch.setattr(worker.evict_profile._host, "fetch", None)
    for requests in (1, 2, 3):
        worker.forward_batch_generation(Batch(requests))
    assert worker.evict_profile.follows
    assert list(worker.evict_profile._states) == [width]
    verified = [entry for entry in worker.log if entry[0] == "verify"]
    assert [entry[1] for entry in verified] == 3 * [width]


def test_worth_comes_before_probability() -> None:
    """And of equals the more probable, then the first, is kept."""
    drafted = drafting(0, 1, 2, 2).drafted(5)
    worth = torch.tensor([[0.5, 0.9, 0.5, 0.5]], dtype=torch.float64)
    kept = cut(drafted, 3, worth).index[0].tolist()
    best = drafted.path_prob[0].argsort(descending=True, stable=True).tolist()
    second = next(node for node in best if node != 1)
    assert kept == sorted(drafted.index[0][[1, second]].tolist())

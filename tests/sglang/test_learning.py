"""The real engine learns from its verifications, and says what plain decoding says.

A planted clock says that each takes `PLANTED_LEVEL` times what the table says.
"""

import pytest

from evict_profile.records import parse, read_mapping
from evict_profile.runtime.learning import ForwardParts, Learner, Learnt
from evict_profile.table import CostTable
from tests.sglang.faults import PLANTED_LEVEL
from tests.sglang.serving import Request, replies
from tests.sglang.test_engine import LONGEST, TREES
from tests.sglang.test_ranks import by_rank

PROMPT = (801, *range(20, 90))
"""As long as the contexts that the table was measured at."""


@pytest.mark.parametrize(
    "ranks",
    [("clocked",), pytest.param(("clocked slow", "blurred"), marks=pytest.mark.slow)],
    ids=str,
)
def test_the_leader_learns_the_level_of_its_clock(ranks, fitted, tmp_path):
    """Of two ranks the other one has a clock and scores of its own."""
    asked = [[Request(PROMPT, LONGEST)]]
    longer = [[Request(PROMPT, LONGEST + 8)]]
    [[plain]] = replies(tmp_path, None, longer, {}, tp=len(ranks))
    state, known = tmp_path / "learnt.json", [[*PROMPT, *plain]]
    given = tmp_path, fitted, TREES[0], asked, known, PROMPT[:1]
    run, *logs = by_rank(*given, ranks=ranks, STATE=str(state))
    assert run.said == [[plain[:LONGEST]]]
    assert all(log == logs[0] for log in logs)
    table, learnt = (
        CostTable.load(tmp_path / "table.json"),
        parse(Learnt, read_mapping(state), str(state)),
    )
    assert learnt.steps > 10
    learner = Learner()
    learner.restore(learnt)
    parts = ForwardParts.of(table, 1, len(PROMPT))
    ratio = learner.corrected(parts) / (parts.equal + parts.growth)
    served = ratio[[step.width for step in run.steps]]
    assert served.mean() == pytest.approx(PLANTED_LEVEL, abs=0.03)

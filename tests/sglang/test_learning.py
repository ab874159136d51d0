"""The real engine learns from its verifications, and says what plain decoding says.

A planted clock says that each takes `PLANTED_LEVEL` times what the table says.
"""

import json

import pytest

from tests.sglang.faults import PLANTED_LEVEL
from tests.sglang.serving import Request
from tests.sglang.test_engine import DECIDED, LONGEST, TREES, decoded_plainly
from tests.sglang.test_ranks import by_rank


@pytest.mark.parametrize(
    "ranks",
    [("clocked",), pytest.param(("clocked slow", "blurred"), marks=pytest.mark.slow)],
    ids=str,
)
def test_the_leader_learns_the_level_of_its_clock(ranks, fitted, tmp_path):
    """Of two ranks the other one has a clock and scores of its own."""
    plain = decoded_plainly(tmp_path, tp=len(ranks))
    state, asked = tmp_path / "learnt.json", [[Request(DECIDED, LONGEST)]]
    given = tmp_path, fitted, TREES[0], asked, plain.known, DECIDED[:1]
    run, *logs = by_rank(*given, ranks=ranks, STATE=str(state))
    assert run.said == [[plain.reply(asked[0][0])]]
    assert all(log == logs[0] for log in logs)
    learnt = json.loads(state.read_text())
    assert learnt["steps"] > 10
    assert 1.0 + learnt["level"] == pytest.approx(PLANTED_LEVEL, abs=0.05)

"""Texts are compared with what the whole target would have said."""

import pytest

from benchmarks.agreement import Judge
from benchmarks.turns import Contender, Text, serve_all
from evict_profile.replay.policies import Fixed
from evict_profile.traces import Trace
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.session import TraceSession

TOKENS = 6


@pytest.fixture(scope="module")
def texts(
    random_session: TraceSession, short_trace: Trace
) -> dict[str, tuple[Text, ...]]:
    """Three replies by trees, without a budget and within a tight one."""
    contenders = {
        name: Contender(lambda: Fixed("tree", 3, 8), 12, budget)
        for name, budget in (("none", None), ("tight", Budget((2, 2, 2))))
    }
    found = serve_all(random_session, short_trace, contenders, 3, 1)
    return {name: tuple(each.texts) for name, each in found.items()}


def test_without_a_budget_all_tokens_are_the_targets(
    random_session: TraceSession, texts: dict[str, tuple[Text, ...]]
) -> None:
    """Whatever was drafted."""
    found = Judge(random_session, TOKENS).judge(texts["none"])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_tight_budget_says_other_things(
    random_session: TraceSession, texts: dict[str, tuple[Text, ...]]
) -> None:
    """With experts that tokens did not want; some replies are worse than others."""
    found = Judge(random_session, TOKENS).judge(texts["tight"])
    assert found.low <= found.value <= found.high
    assert found.value < 1.0


def test_a_wrong_token_counts_at_its_place(
    random_session: TraceSession, texts: dict[str, tuple[Text, ...]]
) -> None:
    """The first of a reply is not counted; what comes after its end is not either."""
    judge, text = Judge(random_session, TOKENS), texts["none"][0]
    at = text.prompt

    def with_another(place: int) -> Text:
        ids = list(text.ids)
        ids[place] = (ids[place] + 1) % 12
        return Text(text.job, ids, text.prompt)

    last = at + TOKENS
    assert judge.judge([with_another(last)]).value == pytest.approx(
        1.0 - 1.0 / TOKENS, abs=1e-4
    )
    cut = tuple(with_another(last).ids[: last + 1])
    assert judge.agreed(cut, at) == TOKENS - 1
    longer = Text(text.job, [*text.ids[: last + 1], 0, 0, 0], at)
    assert judge.judge([longer]).value == 1.0
    only_first = tuple(with_another(at).ids[: at + 1])
    assert judge.agreed((*only_first, 0), at) in (0, 1)


def test_a_reply_that_was_decoded_twice_is_one(
    random_session: TraceSession, texts: dict[str, tuple[Text, ...]]
) -> None:
    """With one reply alone there is nothing to resample."""
    short = Text(0, texts["tight"][0].ids[:-3], texts["tight"][0].prompt)
    whole = Text(0, texts["tight"][0].ids, texts["tight"][0].prompt)
    found = Judge(random_session, TOKENS).judge([whole, short])
    assert found.low == found.value == found.high

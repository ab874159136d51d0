"""Which depths and widths are tried."""

from hypothesis import given
from hypothesis import strategies as st

from evict_profile.replay.comparison import fastest
from evict_profile.replay.tuning import fixed_points


def most_tokens(depth, topk, nodes):
    return 1 + min(nodes, topk + (depth - 1) * topk**2)


@given(
    topk=st.sampled_from([1, 2, 8]),
    depth=st.integers(1, 8),
    at=st.integers(1, 8),
    width=st.integers(2, 70),
)
def test_the_best_of_all_trees_is_found_where_speed_has_one_peak(
    topk, depth, at, width
):
    nodes = depth if topk == 1 else 60

    def rate(policy):
        return 1.0 / (1.0 + abs(policy.depth - at) + 0.01 * abs(policy.width - width))

    points = fixed_points(rate, nodes, depth, topk)
    assert all(2 <= p.width <= most_tokens(p.depth, topk, nodes) for p in points)
    deep = min(at, depth)
    peak = min(width, most_tokens(deep, topk, nodes))
    assert (fastest(points).depth, fastest(points).width) == (deep, peak)


def test_a_chain_verifies_what_it_drafts_at_most():
    points = fixed_points(lambda policy: policy.width, nodes=12, deepest=12, topk=1)
    assert (fastest(points).depth, fastest(points).width) == (12, 13)
    assert {p.width for p in points if p.depth == 4} == {2, 3, 4, 5}

"""Cuts that the four words of a `Combination` do not describe.

Some take other orders than a rule of the package, some look at a whole batch.
"""

from fractions import Fraction

from tests.lossless.proof.cuts import (
    Cut,
    Memory,
    argmax,
    by_score,
    depth_at_bound,
    down_to,
    gains,
    level_sums,
    ratio,
    reaching,
)


def first(width, scores):
    return frozenset(range(min(width, len(scores))))


def all_so_far(state, spent, costs):
    claimed = [
        scores[k]
        for scores, kept in zip(spent.scores, spent.kept, strict=True)
        for k in kept
    ]
    step = (
        Fraction(spent.emitted),
        costs[len(claimed)],
        Fraction(spent.emitted - 1),
        sum(claimed, start=Fraction(0)),
    )
    return tuple(past + new for past, new in zip(state, step, strict=True))


TOTALS = Memory(lambda costs: (Fraction(0),) * 4, all_so_far)


def throughput(scores, state, costs):
    """The width of the highest throughput, past and present.

    Scores count as often as past ones came true: what `runtime.history` learns.
    """
    tokens, time, accepted, claimed = state
    trust = (1 + accepted) / (1 + claimed)
    pairs = zip(gains(trust * score for score in scores), costs, strict=False)
    return argmax([(tokens + gain) / (time + cost) for gain, cost in pairs])


def depth_then_ratio(batch, state, levels, bound, costs):
    """A depth, and of the nodes down to there those of the highest ratio."""
    kept = []
    drafted = depth_at_bound(batch, state, levels, bound)
    for nodes, scores in zip(map(sorted, drafted), batch, strict=True):
        own = tuple(scores[k] for k in nodes)
        (chosen,) = Cut(ratio, by_score, costs=costs).keep((own,), state)
        kept.append(frozenset(nodes[k] for k in chosen))
    return tuple(kept)


def dropped_level(batch, state, levels, bound):
    """All levels, less the last where a request's scores there sum to less."""
    kept = []
    for scores in batch:
        last, worth = level_sums((scores,), levels)[-1]
        depth = last if worth >= bound else last - 1
        kept += down_to(depth, levels, (scores,))
    return tuple(kept)


def crossed(batch, state, bound):
    """Each of two requests verifies as many nodes as the other's reach `bound`."""
    one, other = batch
    if not one or not other:
        return first(len(one), one), first(len(other), other)
    width, other_width = reaching(bound, other), reaching(bound, one)
    return first(width, one), first(other_width, other)


def one_way(batch, state, bound):
    """The first request verifies all; the second as many as the first's reach."""
    one, other = batch
    return first(len(one), one), first(reaching(bound, one), other)


def lagged_total(batch, state, bound):
    """Nodes for the whole batch, as many as reached `bound` in the step before.

    They are dealt out in drafting order, first to the first request.
    """
    left, kept = int(state[0]), []
    for scores in batch:
        kept.append(first(left, scores))
        left -= len(kept[-1])
    return tuple(kept)


def pooled_ratio(batch, state, costs):
    """One global argmax of expected tokens over cost, on the scores of all."""
    nodes = sorted(
        (-score, node, request)
        for request, scores in enumerate(batch)
        for node, score in enumerate(scores)
    )
    certain = sum(1 for scores in batch if scores)
    tokens = [certain - 1 + gain for gain in gains(-node[0] for node in nodes)]
    pairs = zip(tokens, costs, strict=False)
    kept = nodes[: argmax([gain / cost for gain, cost in pairs])]
    return tuple(
        frozenset(node for _, node, owner in kept if owner == request)
        for request in range(len(batch))
    )


def stop_by_depth(batch, state, rate):
    """Chains: all grow until the scores at a depth sum to less than `rate`."""
    depth = 0
    for level in zip(*(scores for scores in batch if scores), strict=True):
        if sum(level) < rate:
            break
        depth += 1
    return tuple(first(depth, scores) for scores in batch)

"""A trace holds what decoding would meet, whatever was cut before."""

import numpy as np

from runners.tree_decoding.policy import Always
from runners.tree_decoding.session import trace_reply
from tests.runners.tree_decoding.decoding import Decoder


def test_decoding_meets_the_traced_trees(decoder: Decoder) -> None:
    traced = trace_reply(decoder.start(1, 0.8), 24)
    engine = decoder.start(1, 0.8)
    position = 0
    while position < 20:
        step = engine.step(Always(3, 6))
        met, tree = traced[position], step.trees[0]
        reached = met.tree.take(np.flatnonzero(met.tree.depth[0] <= 3)[None])
        best = reached.best(5)
        assert best.token.tolist() == tree.token.tolist()
        assert best.parent.tolist() == tree.parent.tolist()
        np.testing.assert_allclose(best.path_prob, tree.path_prob, rtol=1e-3)
        position += step.committed[0]


def test_accepted_nodes_are_the_reply(decoder: Decoder) -> None:
    engine = decoder.start(1)
    traced = trace_reply(engine, 20)
    reply = engine.requests[0].reply
    for step in traced[:15]:
        path = step.tree.token[0][step.accepted].tolist()
        start = step.position + 1
        assert path == reply[start : start + len(path)]
        assert step.context == len(decoder.prompt(0)) + step.position


def test_routes_are_of_root_and_nodes(decoder: Decoder) -> None:
    step = trace_reply(decoder.start(1), 1)[0]
    assert step.routes.shape == (3, step.tree.token.shape[1] + 1, 2)

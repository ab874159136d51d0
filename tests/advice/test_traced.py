"""Accepted lengths of traces are those of a walk through each reply."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evict_profile.advice.traced import best_children, of_trace
from evict_profile.traces import load_traces
from tests.traces.steps import make_nodes, replies_of
from tests.traces.synthetic import Plan, make_table, write_trace


class TestTrace:
    def test_decoding_goes_on_where_each_way_would(self, tmp_path):
        """Tokens over steps of a walk through each reply, by a naive walk."""
        path = write_trace(tmp_path / "t.parquet", Plan(prompts=3, tokens=20))
        chain, tree = of_trace(path)
        trace = load_traces(path)
        for found, way in ((chain, 2), (tree, 2)):
            tokens = steps = 0
            for steps_of_reply in replies_of(trace):
                place = 0
                while place < len(steps_of_reply):
                    step = steps_of_reply[place]
                    kept = step.best(int(found.width[way]))
                    if found.kind == "chain":
                        kept, last = [], -1
                        for node in range(len(step.parent)):
                            if step.rank[node] == 0 and step.parent[node] == last:
                                kept, last = [*kept, node], node
                        kept = np.array(kept[: int(found.levels[way])])
                    place += step.committed(kept)
                    steps += 1
                tokens += place
            assert found.committed[way] == pytest.approx(tokens / steps)

    def test_replies_to_the_same_prompts_do_not_make_it_surer(self, tmp_path):
        once = make_table(Plan(prompts=6, workloads=("prose",), temperatures=(1.0,)))
        place = once.column_names.index("seed")
        again = [
            once.set_column(
                place,
                once.field(place),
                [pa.array([seed] * len(once), once.field(place).type)],
            )
            for seed in range(8)
        ]
        half_width = []
        for number, table in enumerate((once, pa.concat_tables(again))):
            pq.write_table(table, tmp_path / f"{number}.parquet")
            half_width.append(of_trace(tmp_path / f"{number}.parquet")[0].half_width)
        assert half_width[0][1] > 0.0
        assert half_width[1].tolist() == pytest.approx(half_width[0].tolist())

    def test_too_few_prompts_bound_nothing(self, tmp_path):
        plan = Plan(prompts=2, workloads=("code",), temperatures=(1.0,), seeds=8)
        found = of_trace(write_trace(tmp_path / "t.parquet", plan))[0]
        assert found.half_width[0] == 0.0
        assert np.isinf(found.half_width[1:]).all()

    def test_trees_draft_all_levels_and_verify_few(self, tmp_path):
        _, tree = of_trace(write_trace(tmp_path / "t.parquet"))
        assert tree.levels.tolist() == [0] + [4] * (len(tree.width) - 1)
        assert tree.width.tolist()[:6] == [1, 2, 4, 8, 12, 16]
        assert (np.diff(tree.committed) >= -0.02).all()

    def test_the_best_children_are_the_chain(self):
        """Rank 0 below rank 0, from the root on."""
        chance = [0.6, 0.3, 0.2, 0.3]
        nodes = make_nodes(([-1, -1, 0, 0], chance, [False] * 4))
        assert best_children(nodes).tolist() == [True, False, False, True]

"""Acceptance comes to the same lengths in whatever form it is told."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import (
    REJECTION_GROWTH,
    acceptance_of,
    best_children,
    of_metrics,
    of_rate,
    of_some,
    of_trace,
    of_yaml,
)
from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.served.probe.record import Probed, Wave, append
from evict_profile.served.probe.server import ServerInfo
from evict_profile.traces import load_traces
from tests.traces.steps import make_nodes, replies_of
from tests.traces.synthetic import Plan, make_table, write_trace


def request(drafted, accepted, most):
    histogram = np.bincount(accepted, minlength=most + 1).tolist()
    return {
        "id": "x",
        "metrics": {
            "speculative_decoding": {
                "acceptance_histogram": histogram,
                "num_draft_tokens": sum(drafted),
                "num_spec_tokens": most,
                "per_step_accepted": accepted,
                "per_step_drafted": drafted,
            }
        },
    }


def summary(response):
    metrics = response["metrics"]["speculative_decoding"]
    kept = {k: v for k, v in metrics.items() if not k.startswith("per_step")}
    return {"metrics": {"speculative_decoding": kept}}


class TestForms:
    @pytest.mark.parametrize(
        ("text", "levels", "committed"),
        [
            ("1.84,2.51,2.47", [0, 1, 2, 3], [1.0, 1.84, 2.51, 2.47]),
            # Shares by position: one token of the target's own, and their sum.
            ("0.8,0.65,0.5", [0, 1, 2, 3], [1.0, 1.8, 2.45, 2.95]),
            # One number up to 1 is a rate.
            *((text, [*range(17)], of_rate(float(text)).committed) for text in "01"),
        ],
    )
    def test_numbers_are_lengths_or_falling_shares(self, text, levels, committed):
        [found] = acceptance_of(text)
        assert found.levels.tolist() == levels
        assert (found.width == found.levels + 1).all()
        assert found.committed.tolist() == pytest.approx(committed)
        assert not found.half_width.any()

    @pytest.mark.parametrize(
        ("name", "text", "committed"),
        [
            ("al.yaml", "{accepted: {2: 2.0}}", 2.0),
            ("m.jsonl", json.dumps(request([1, 1], [0, 1], 1)), 1.5),
        ],
    )
    def test_a_file_is_read_by_what_it_is(self, tmp_path, name, text, committed):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert acceptance_of(str(path))[0].committed[-1] == committed

    def test_one_length_needs_its_k(self):
        with pytest.raises(ConfigError, match=r"of which K\?.*--accept 3:2.64"):
            acceptance_of("2.64")

    @pytest.mark.parametrize(
        "text",
        [
            *("0.5,0.6", "1.2,0.5", "-0.1", "nan", "0.5,nan", "inf", "1,1", "x"),
            *("1.5,3.2", "none.yaml", "/dev/null", "3:", "3:x", "3:1.2.3"),
            *("3:2.51,3:2.6", "1.5,1.4", "3:2.8,7:2.4", "0:1.5", "65:3"),
        ],
    )
    def test_what_has_no_form_is_refused(self, text):
        """Whether 1,1 are lengths or shares nobody can say."""
        with pytest.raises(ConfigError, match=r"--accept|commits 1 to") as caught:
            acceptance_of(text)
        assert re.search("; (give|leave)", str(caught.value))


class TestFitted:
    """Lengths of all K from those of some."""

    @given(st.floats(0.0, 1.0), st.integers(1, 16))
    def test_lengths_of_a_rate_follow_from_one(self, rate, drafts):
        whole = of_rate(rate).committed
        found = of_some({drafts: whole[drafts]}, "")
        assert found.committed == pytest.approx(whole, rel=1e-3)

    def test_stated_lengths_stay_as_they_are(self):
        [found] = acceptance_of("3:3.01,6:3.77,8:3.47")
        assert found.levels.tolist() == [*range(17)]
        assert found.committed[[3, 6, 8]].tolist() == [3.01, 3.77, 3.47]
        assert not found.half_width[[0, 3, 6, 8]].any()
        assert 3.01 < found.committed[4] < found.committed[5] < 3.77

    def test_a_longer_k_than_is_usual_gives_all_up_to_it(self):
        [found] = acceptance_of("20:3.4")
        assert found.levels.tolist() == [*range(21)]
        assert found.committed[20] == 3.4
        assert (np.diff(found.committed) >= 0.0).all()

    def test_a_k_farther_from_the_stated_has_a_wider_interval(self):
        half = of_some({4: 2.9}, "").half_width
        assert (np.diff(half[4:]) > 0.0).all() and (np.diff(half[1:5]) < 0.0).all()

    def test_published_lengths_lie_in_the_intervals(self):
        """One length of each curve is stated, in turn; a page has those from K = 3."""
        stated, drafts, error, half = np.array([*errors_of_fits()]).T
        assert len(error) == 1648
        assert (error <= half).mean() == pytest.approx(0.96, abs=0.005)
        page = (data_root() / "docs/decide/draft-length.md").read_text()
        for k in (1, 2, 4, 5, 6, 7, 8):
            here = (stated == 3) & (drafts == k)
            found = *np.quantile(error[here], [0.5, 0.95]), half[here][0]
            numbers = " | ".join(f"{100.0 * value:.1f} %" for value in found)
            assert f"| {k} | {here.sum()} | {numbers} |" in page


def errors_of_fits():
    """The stated K, another K, its |log error| and half of its interval."""
    for curve in published_curves():
        for stated, length in curve.items():
            found = of_some({stated: length}, "")
            for drafts in curve.keys() - {stated}:
                error = abs(np.log(curve[drafts] / found.committed[drafts]))
                yield stated, drafts, error, found.half_width[drafts]


def published_curves():
    """Accepted lengths by K: InferenceX's, shares by position, SpecBundle's chains."""
    data = data_root() / "benchmarks/served/data"
    golden = pd.read_csv(data / "inferencex-golden-al.csv", skiprows=1)
    for row in golden.filter(regex=r"^K\d").to_numpy():
        yield dict(enumerate(row.tolist(), 1))
    for text in pd.read_csv(data / "acceptance-per-position.csv").iloc[:, 5]:
        if "hazards" not in text:
            shares = [*map(float, text.split())]
            yield dict(enumerate(1.0 + np.cumsum(shares), 1))
    rows = pd.read_csv(data / "specbundle.csv", comment="#").query("topk == 1")
    for _, runs in rows.groupby(["model", "dataset", "draft", "batch_size"]):
        yield dict(zip(runs["steps"], runs["accept_length"], strict=True))


SERVER = ServerInfo("http://a", "vllm", "1", "m", 3, 3, 1, {})


class TestProbe:
    """Waves of a server with K = 3, of another batch, and of plain decoding."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "runs.jsonl"
        for drafts, waves in {
            3: [(1, 2.0, 3.0), (4, 2.5, 3.0), (4, 9.0, 1.0)],
            0: [(1, None, None)],
            7: [(1, 3.1, 7.0)],
        }.items():
            append(path, Probed(replace(SERVER, drafts=drafts), "chat"))
            for batch, accepted, drafted in waves:
                append(path, Wave(1, batch, 100.0, accepted, 512, 0, 0, 1, drafted))
        return path

    def test_a_length_is_the_mean_over_requests_of_good_waves(self, path):
        """A wave that drafted otherwise than stated shows no step of its server."""
        [found] = acceptance_of(str(path))
        assert found.levels.tolist() == [0, 3, 7]
        assert found.committed.tolist() == pytest.approx([1.0, 2.4, 3.1])

    def test_waves_that_differ_give_an_interval(self, path):
        """Student's t for two waves is 12.7; one wave has none."""
        half = acceptance_of(str(path))[0].half_width
        assert half.tolist() == pytest.approx([0.0, 12.706 * 0.25 / 2.4, 0.0], rel=1e-3)

    @pytest.mark.parametrize(
        ("changes", "text", "says"),
        [
            ({"model": "other"}, "chat", "runs are of several servers"),
            ({}, "raw", "one kind of prompts"),
            ({"topk": 4}, "chat", r"of chains \(topk 1\)"),
        ],
    )
    def test_other_servers_prompts_and_trees_are_refused(
        self, path, changes, text, says
    ):
        append(path, Probed(replace(SERVER, drafts=5, **changes), text))
        with pytest.raises(ConfigError, match=says):
            acceptance_of(str(path))

    def test_a_plain_server_has_no_lengths(self, tmp_path):
        path = tmp_path / "runs.jsonl"
        append(path, Probed(replace(SERVER, drafts=0), "chat"))
        with pytest.raises(ConfigError, match="has no accepted length"):
            acceptance_of(str(path))


class TestTold:
    def test_the_rejection_of_a_rate_grows_by_position(self):
        """1 - (1 - p) 1.09^(k - 1), given the drafts before."""
        chances = np.diff(of_rate(0.8).committed)
        chances[1:] /= chances[:-1].copy()
        grown = (1.0 - chances)[1:] / (1.0 - chances)[:-1]
        assert grown == pytest.approx(REJECTION_GROWTH)

    @given(st.floats(0.0, 1.0))
    def test_a_rate_gives_no_chance_below_none(self, rate):
        committed = of_rate(rate).committed
        assert (np.diff(committed) >= 0.0).all()
        assert committed[1] == pytest.approx(1.0 + rate)

    @pytest.mark.parametrize(
        "text",
        [
            "m:\n  thinking_on: {2: '2.5', 1: 1.4}\n",
            "m:\n  thinking_on:\n  - {1: 1.4}\n  - {2: 2.5}\n",
            "1: 1.4\n2: 2.5\n",
        ],
    )
    def test_a_yaml_holds_a_curve_in_any_shape(self, tmp_path, text):
        path = tmp_path / "al.yaml"
        path.write_text(text, encoding="utf-8")
        assert of_yaml(path).committed.tolist() == [1.0, 1.4, 2.5]

    def test_of_several_curves_one_is_named(self, tmp_path):
        path = tmp_path / "al.yaml"
        path.write_text("m:\n  fast: {1: 1.4}\n  slow: {1: 1.5}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="m/fast, m/slow; choose one as"):
            of_yaml(path)
        [found] = acceptance_of(f"{path}:m/slow")
        assert found.committed.tolist() == [1.0, 1.5]

    def test_what_was_served_stands_beside(self, tmp_path):
        path = tmp_path / "al.yaml"
        path.write_text("{accepted: {3: 2.6}, served: {3: 1.59}}", encoding="utf-8")
        assert of_yaml(path).served == {3: 1.59}


class TestMetrics:
    @given(
        st.lists(
            st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=4
        )
    )
    def test_a_longer_chain_tells_of_a_shorter(self, tmp_path_factory, replies):
        """A chain is accepted as a prefix: at K, min(accepted, K) and one."""
        path = tmp_path_factory.mktemp("m") / "out.jsonl"
        lines = [json.dumps(request([4] * len(r), r, 4)) for r in replies]
        path.write_text("\n".join(lines), encoding="utf-8")
        every = [accepted for reply in replies for accepted in reply]
        naive = [np.mean([1 + min(a, k) for a in every]) for k in range(5)]
        assert of_metrics(path).committed.tolist() == pytest.approx(naive)

    def test_shorter_drafts_say_nothing_of_longer(self, tmp_path):
        path = tmp_path / "out.json"
        path.write_text(json.dumps([request([3, 1], [3, 1], 3)]), encoding="utf-8")
        assert of_metrics(path).committed.tolist() == [1.0, 2.0, 3.0, 4.0]

    def test_a_summary_is_enough_where_all_drafted_alike(self, tmp_path):
        """The histogram has the lengths; of drafts cut short it does not say whose."""
        path = tmp_path / "out.json"
        whole = summary(request([2, 2], [0, 2], 2))
        path.write_text(json.dumps(whole), encoding="utf-8")
        assert of_metrics(path).committed.tolist() == [1.0, 1.5, 2.0]
        cut = summary(request([2, 1], [0, 1], 2))
        path.write_text(json.dumps(cut), encoding="utf-8")
        with pytest.raises(ConfigError, match="detailed"):
            of_metrics(path)

    def test_more_requests_make_it_surer(self, tmp_path):
        half_width = []
        for requests in (6, 60):
            path = tmp_path / f"{requests}.json"
            rng = np.random.default_rng(0)
            drawn = rng.binomial(4, 0.5, (requests, 20)).tolist()
            made = [request([4] * 20, each, 4) for each in drawn]
            path.write_text(json.dumps(made), encoding="utf-8")
            half_width.append(of_metrics(path).half_width)
        assert 0.0 < 2.0 * half_width[1][-1] < half_width[0][-1]
        means = 1.0 + np.mean(drawn, axis=1)
        expected = 1.96 * means.std(ddof=1) / len(means) ** 0.5 / means.mean()
        assert half_width[1][-1] == pytest.approx(expected, rel=0.15)

    @pytest.mark.parametrize(
        "text", ["{}", "[]\n{", '{"metrics": null}', "[" * 10**5, ""]
    )
    def test_files_without_metrics_are_refused(self, tmp_path, text):
        path = tmp_path / "out.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"out.json"):
            of_metrics(path)

    @pytest.mark.parametrize(
        ("metrics", "says"),
        [
            ({"acceptance_histogram": [5], "num_draft_tokens": 0}, "detailed"),
            ({"per_step_accepted": [0], "per_step_drafted": [0]}, "detailed"),
            ({"per_step_accepted": [1, 2]}, "one count a step"),
            ({"per_step_accepted": [1], "per_step_drafted": [2, 2]}, "one count"),
            ({"per_step_accepted": [3], "per_step_drafted": [2]}, "more than"),
            ({"per_step_accepted": [-1], "per_step_drafted": [2]}, ">= 0"),
            ({"per_step_accepted": [1.5], "per_step_drafted": [2]}, "per_step"),
            ({"per_step_accepted": [1], "per_step_drafted": [10**9]}, "<= 1024"),
            ({"acceptance_histogram": []}, "detailed"),
            ({"acceptance_histogram": [1, -1]}, "acceptance_histogram"),
            ({"acceptance_histogram": [0, 10**15]}, "acceptance_histogram"),
        ],
    )
    def test_odd_metrics_are_one_sentence(self, tmp_path, metrics, says):
        told = {"acceptance_histogram": [0, 1], "num_draft_tokens": 1, **metrics}
        path = tmp_path / "out.json"
        path.write_text(json.dumps({"metrics": {"speculative_decoding": told}}))
        with pytest.raises(ConfigError, match=says) as caught:
            of_metrics(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)

    def test_a_request_that_drafted_nothing_is_left_out(self, tmp_path):
        path = tmp_path / "out.json"
        made = [request([0, 0], [0, 0], 0), request([1, 1], [0, 1], 1)]
        path.write_text(json.dumps(made), encoding="utf-8")
        found = of_metrics(path)
        assert found.committed.tolist() == [1.0, 1.5]
        assert found.source.startswith("1 requests")


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

"""Acceptance comes to the same lengths in whatever form it is told."""

import numpy as np
import pytest

from evict_profile.advice.acceptance import acceptance_of, of_rate, of_runs, of_yaml
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.run import Deployment, Load, Run
from tests.advice import logs
from tests.served.probe.fake_server import FakeServer
from tests.served.readers.reading import SAMPLES


class TestForms:
    @pytest.mark.parametrize(
        ("text", "committed"),
        [
            ("1.84,2.51,2.47", {1: 1.84, 2: 2.51, 3: 2.47}),
            # Shares by position: one token of the target's own, and their sum.
            ("0.8,0.65,0.5", {1: 1.8, 2: 2.45, 3: 2.95}),
            ("80%,65%", {1: 1.8, 2: 2.45}),
            ("0", dict.fromkeys(range(1, 17), 1.0)),
            # Engines state the mean over positions: 1 + 4 x 0.64.
            *((text, {4: 3.56}) for text in ("4:64%", "4:0.64", "4:3.56")),
        ],
    )
    def test_numbers_are_a_rate_lengths_or_shares(self, text, committed):
        [found] = acceptance_of(text)
        assert (found.width == found.levels + 1).all() and found.levels[0] == 0
        known = dict(zip(found.levels.tolist(), found.committed, strict=True))
        assert {k: known[k] for k in committed} == pytest.approx(committed)
        stated = () if text == "0" else tuple(committed)
        assert found.stated == stated
        assert not found.half_width[list(stated)].any()

    @pytest.mark.parametrize("text", ["0.64", "64%"])
    def test_a_rate_alone_is_the_first_drafts(self, text):
        [found] = acceptance_of(text)
        assert found.committed == pytest.approx(of_rate(0.64).committed)
        assert found.source.startswith("the first draft is accepted at 0.64")
        assert found.longest_stated is None

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("0,75", "a comma for a point; give 0.75"),
            ("K=3:2.4", "no such form; give 3:2.4"),
            ("3:", "names K = 3 without its length; give 3:2.51"),
            ("nan", "is no acceptance; give a rate"),
            ("-0.5", "is negative; give a rate"),
            ("high", "no such file, nor numbers; give"),
            ("3:x", "no such file, nor numbers; give"),
            ("0.5,0.6", "neither lengths nor falling shares"),
            ("1,1", "neither lengths nor falling shares"),
            ("1.5,3.2", "commits 1 to 3 tokens"),
            ("3:2.51,3:2.6", "names a K twice"),
            ("1.5,1.4", "these lengths fall"),
            ("3:2.8,7:2.4", "these lengths fall"),
            ("0:1.5", "K is 1 to 64"),
            ("65:3", "K is 1 to 64"),
            ("3:640%", "commits 1 to 4 tokens"),
        ],
    )
    def test_each_slip_has_its_sentence(self, text, says):
        """Whether 1,1 are lengths or shares nobody can say."""
        with pytest.raises(ConfigError) as caught:
            acceptance_of(text)
        assert says in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["1", "1.0", "100%", "3:4", "3:4.0", "3:100%", "2,3"]
    )
    def test_drafts_that_are_all_accepted_are_refused(self, text):
        with pytest.raises(
            ConfigError, match=r"every draft is accepted.*check the text"
        ):
            acceptance_of(text)


class TestYaml:
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


def run(lengths, batch=1, levels=3, **facts):
    shape = {"drafts": levels, "levels": levels, "topk": 1, "width": levels + 1}
    return Run(source="a", batch=batch, accept_lengths=lengths, **(shape | facts))


class TestRuns:
    """Lengths of runs, weighted by their steps."""

    def test_runs_weigh_by_their_steps(self):
        """An idle tail of 20 steps in 1,000 moves a mean of 2.5 by 0.03."""
        many, tail = Load(steps=980.0), Load(steps=20.0)
        found = of_runs([run({3: 2.5}, load=many), run({3: 1.0}, load=tail)], "log")
        assert found.committed[3] == pytest.approx(2.47)

    def test_runs_without_steps_weigh_by_their_requests(self):
        found = of_runs([run({3: 2.2}, 1), run({3: 2.5}, 4)], "probe")
        assert found.committed[3] == pytest.approx(2.44)

    def test_batches_whose_lengths_lie_apart_have_each_its_own(self):
        found = of_runs([run({3: 2.8}, 1), run({3: 2.1}, 64)], "b.csv")
        assert [found.at(b).committed[3] for b in (1, 64)] == [2.8, 2.1]
        assert found.source.endswith(", by batch")
        alike = of_runs([run({3: 2.8}, 1), run({3: 2.6}, 64)], "b.csv")
        assert alike.at(128) is alike

    def test_an_interval_of_texts_holds_each_text(self):
        code, chat = (replace(run({3: n}), text=t) for n, t in ((3.2, "a"), (1.7, "b")))
        found = of_runs([code, chat, chat], "t.csv")
        assert found.committed[3] == pytest.approx(2.45)
        assert found.source.startswith("3 runs of t.csv, the mean of the texts a, b,")
        half = found.half_width[3]
        assert 2.45 * np.exp(-half) < 1.8 and 2.45 * np.exp(half) > 3.2

    def test_a_mean_rate_is_said_to_be_one(self):
        assert "the mean over K positions" in acceptance_of("3:60%")[0].source
        assert "mean over" not in acceptance_of("3:2.8")[0].source

    def test_the_interval_is_of_several_runs(self):
        """Of equal weights: Student's t for two runs, 12.7, x the mean's error."""
        half = of_runs([run({3: 2.2}), run({3: 2.5})], "a").half_width
        assert half[3] == pytest.approx(12.706 * 0.15 / 2.35, rel=1e-3)
        assert half[0] == 0.0 and (half[1:] >= half[3]).all()
        assert of_runs([run({3: 2.0})], "a").half_width[3] == 0.0

    def test_positions_give_shorter_k_and_several_k_are_kept(self):
        found = of_runs([run({1: 1.7, 2: 2.2, 3: 2.5}), run({5: 3.0}, levels=5)], "a")
        assert (found.stated, found.longest_stated) == ((1, 2, 3, 5), 5)
        assert found.committed[[1, 2, 3, 5]].tolist() == [1.7, 2.2, 2.5, 3.0]

    @pytest.mark.parametrize(
        ("runs", "says"),
        [
            ([], "states no accepted length"),
            ([run({}, levels=0)], "states no accepted length"),
            ([run({3: 2.0}, topk=4)], "trees, and their own speed-ups"),
            ([run({3: 2.0}, load=Load(drafted=1.5))], "1.50 tokens are drafted a step"),
            (
                [run({3: 2.0}, text="raw"), run({3: 2.0}, text="chat")],
                "one kind of prompts",
            ),
            (
                [
                    run({3: 2.0}, deployment=Deployment(model=name))
                    for name in ("a", "b")
                ],
                r"of several servers \(a and b\)",
            ),
        ],
    )
    def test_what_is_of_no_one_server_and_k_is_refused(self, runs, says):
        with pytest.raises(ConfigError, match=says):
            of_runs(runs, "a")

    def test_a_run_that_states_no_server_may_be_of_that_of_another(self):
        servers = (Deployment(engine="llama.cpp"), Deployment())
        runs = [run({3: 2.0}, deployment=each) for each in servers]
        assert of_runs(runs, "a").committed[3] == 2.0


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "length"),
        [
            ("probe.jsonl", 2.4),
            ("vllm-console.txt", 3.204),
            ("vllm-result.json", 2.5),
            ("vllm-metrics.txt", 2.5),
            ("vllm-responses.jsonl", 2.5),
            ("sglang-results.jsonl", 2.5),
            ("sglang-console.txt=3", 2.5),
            ("sglang-metrics.txt=3", 2.64),
            ("llama-replies.jsonl=3", 2.0),
            ("sglang.log", (3 * 320 * 7.6 / 3 + 80) / 1040),
        ],
    )
    def test_any_file_of_runs_states_its_acceptance(self, name, length):
        [found] = acceptance_of(str(SAMPLES / name))
        assert found.longest_stated == 3 and len(found.levels) == 17
        assert found.committed[3] == pytest.approx(length)

    def test_a_name_with_a_colon_is_a_file(self, tmp_path):
        path = tmp_path / "log-2026-11-28T09:44.log"
        path.write_text(logs.sglang((2.5, 2.7)))
        assert acceptance_of(str(path))[0].committed[3] == pytest.approx(2.6)

    def test_replies_that_repeat_themselves_are_refused(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("batch,K,step ms,accepted\n1,3,10,4\n")
        with pytest.raises(
            ConfigError, match=r"every draft is accepted.*check the text"
        ):
            acceptance_of(str(path))


SPEC = "vllm:spec_decode_num_"
TEN_STEPS = "\n".join(
    [
        *(f"{SPEC}drafts_total 10", f"{SPEC}draft_tokens_total 20"),
        f'{SPEC}accepted_tokens_per_pos_total{{engine="0",position="0"}} 8',
        f'{SPEC}accepted_tokens_per_pos_total{{engine="0",position="1"}} 5',
    ]
)
CHAIN = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}


class TestServer:
    """A server states what its steps committed."""

    def test_vllm_counts_accepted_tokens_by_position(self):
        """A rate of 0.8, then 0.5 of all steps; longer drafts are fitted."""
        with FakeServer(replaces={"/metrics": TEN_STEPS}) as fake:
            [found] = acceptance_of(f"{fake.url}/metrics")
        assert found.committed[:3].tolist() == pytest.approx([1.0, 1.8, 2.3])
        assert found.stated == (1, 2) and len(found.levels) == 17

    def test_sglang_states_the_mean_of_its_ranks(self):
        ranks = [{"avg_spec_accept_length": each} for each in (2.6, 2.8)]
        stated = {**CHAIN, "internal_states": ranks}
        with FakeServer("sglang", stated=stated) as fake:
            [found] = acceptance_of(fake.url)
        assert found.committed[3] == pytest.approx(2.7)
        assert found.stated == (3,)

    @pytest.mark.parametrize(
        "server",
        [
            {},  # A server that has run no step.
            {"engine": "sglang", "stated": CHAIN},
            {
                "engine": "sglang",
                "stated": {"internal_states": [{"avg_spec_accept_length": 2.6}]},
            },
            {"drafts": 0},
        ],
        ids=["no step", "no length", "trees", "plain"],
    )
    def test_a_server_without_lengths_of_one_k_is_refused(self, server):
        with FakeServer(**server) as fake, pytest.raises(ConfigError) as caught:
            acceptance_of(fake.url)
        assert "states no accepted length of chains of one K" in str(caught.value)

    def test_a_password_is_not_repeated(self):
        with pytest.raises(ConfigError, match="give no password") as caught:
            acceptance_of("http://me:secret@127.0.0.1:9")
        assert "secret" not in str(caught.value)

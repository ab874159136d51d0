"""A server states what its steps committed."""

import pytest

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.errors import ConfigError
from tests.served.probe.fake_server import FakeServer

SPEC = "vllm:spec_decode_num_"
TEN_STEPS = "\n".join(
    [
        *(f"{SPEC}drafts_total 10", f"{SPEC}draft_tokens_total 20"),
        f'{SPEC}accepted_tokens_per_pos_total{{engine="0",position="0"}} 8',
        f'{SPEC}accepted_tokens_per_pos_total{{engine="0",position="1"}} 5',
    ]
)
CHAIN = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}


def test_vllm_counts_accepted_tokens_by_position():
    """A rate of 0.8, then 0.5 of all steps; longer drafts are fitted."""
    with FakeServer(replaces={"/metrics": TEN_STEPS}) as fake:
        [found] = acceptance_of(f"{fake.url}/metrics")
    assert found.committed[:3].tolist() == pytest.approx([1.0, 1.8, 2.3])
    assert found.stated == (1, 2) and len(found.levels) == 17


def test_sglang_states_the_mean_of_its_ranks():
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
        {"replaces": {"/metrics": TEN_STEPS.replace(" 20", " 15")}},
        {"engine": "sglang", "stated": CHAIN},
        {
            "engine": "sglang",
            "stated": {"internal_states": [{"avg_spec_accept_length": 2.6}]},
        },
        {"drafts": 0},
    ],
    ids=["no step", "K varies", "no length", "trees", "plain"],
)
def test_a_server_without_lengths_of_one_k_is_refused(server):
    with FakeServer(**server) as fake, pytest.raises(ConfigError) as caught:
        acceptance_of(fake.url)
    assert "states no accepted length of chains of one K" in str(caught.value)


def test_no_server_is_one_sentence():
    with pytest.raises(ConfigError, match="no server answers; start it"):
        acceptance_of("http://127.0.0.1:9/metrics")


def test_a_password_is_not_repeated():
    with pytest.raises(ConfigError, match="give no password") as caught:
        acceptance_of("http://me:secret@127.0.0.1:9")
    assert "secret" not in str(caught.value)

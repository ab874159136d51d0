"""A run refuses numbers that cannot be, and says what it states."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.served.run import Deployment
from tests.served.runs import run


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"drafts": 3, "length": 0.62}, "is a rate"),
        ({"drafts": 3, "length": 4.5}, "commits 1 to 4 tokens, and 4.5 is stated"),
        ({"drafts": 3, "accept_lengths": {5: 2.0}}, "commits 1 to 6 tokens"),
        ({"step_ms": 8330 * 2}, "a step of 1.67e[+]04 ms cannot be"),
        ({"step_ms": 0.016}, "a step of 0.016 ms cannot be"),
        ({"drafts": 0, "width": 4}, "a plain run verifies 1 token"),
        ({"drafts": 3, "width": 1}, "a plain run verifies 1 token"),
    ],
)
def test_numbers_that_cannot_be_are_refused(facts, says):
    with pytest.raises(ConfigError, match=says):
        run(**facts).checked()


def test_a_plain_step_commits_one_token_and_a_drafting_one_what_is_stated():
    assert run().accept_length == 1.0
    assert run(1, 3).accept_length is None
    both = run(1, 3, accept_lengths={1: 1.8, 3: 2.6})
    assert both.checked().accept_length == 2.6


def test_facts_that_are_not_stated_are_left_out():
    stated = Deployment(gpu="H200", tp=2, flags={"quantization": "fp8", "dtype": ""})
    assert stated.stated == {"gpu": "H200", "tp": 2, "quantization": "fp8"}

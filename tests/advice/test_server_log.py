"""A log states accepted lengths of its K, and whether graphs ran."""

import numpy as np
import pytest

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.server_log import LAST, read_log
from evict_profile.errors import ConfigError
from tests.advice import logs


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "server.log").write_text(text)
        return read_log(tmp_path / "server.log")

    return read


@pytest.fixture
def accepted(tmp_path):
    def accepted(text):
        (tmp_path / "server.log").write_text(text)
        [found] = acceptance_of(str(tmp_path / "server.log"))
        return found

    return accepted


def test_sglang_logs_one_length_of_its_k(accepted):
    found = accepted(logs.sglang((2.5, 2.7)))
    assert found.stated == (3,)
    assert found.committed[3] == pytest.approx(2.6)
    assert len(found.levels) == 17


def test_vllm_logs_the_lengths_of_all_k_up_to_its_own(accepted):
    found = accepted(logs.vllm())
    assert found.stated == (1, 2, 3)
    assert found.committed[:4].tolist() == pytest.approx([1.0, 1.738, 2.188, 2.5])


def test_the_last_lines_count_and_their_spread_is_in_the_interval(accepted):
    """The start is left out; lengths that drift are less certain than equal ones."""
    same = accepted(logs.sglang([*[1.1] * 50, *[2.6] * LAST]))
    assert same.committed[3] == pytest.approx(2.6)
    assert same.half_width[3] == pytest.approx(0.0)
    drifts = accepted(logs.sglang(np.linspace(2.2, 3.0, LAST)))
    assert drifts.half_width[3] == pytest.approx(0.07, abs=0.02)
    assert (drifts.half_width[1:] >= drifts.half_width[3]).all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (logs.sglang(start=""), "no K of chains; .* as in 3:2.64"),
        (logs.sglang(start="speculative_adaptive=True\n"), "no K of chains"),
        (
            logs.sglang(start=logs.SGLANG_START.replace("topk=1", "topk=4")),
            "no K of chains",
        ),
        (logs.SGLANG_START, "no accepted length; give the log from"),
        ("GET /v1/models 200\n", "the file is of no kind that is read"),
    ],
    ids=["cut", "adaptive", "trees", "idle", "none"],
)
def test_a_log_without_lengths_of_one_k_is_refused(accepted, text, says):
    with pytest.raises(ConfigError, match=says):
        accepted(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (logs.sglang(graph=False), ["2 of 2 logged steps ran without a CUDA graph"]),
        (
            logs.sglang(running=16),
            ["16 requests at once verify 64 tokens, and CUDA graphs end at 32"],
        ),
        (
            logs.vllm(start=logs.VLLM_START + logs.VLLM_PIECEWISE),
            ["CUDA graphs fell to PIECEWISE"],
        ),
        (logs.vllm(running=17), ["17 requests at once verify 68 tokens"]),
        ("disable_cuda_graph=True\n", ["disable_cuda_graph turns CUDA graphs off"]),
        (logs.vllm(start="enforce_eager=True\n"), ["enforce_eager turns CUDA graphs"]),
        (logs.sglang(), []),
        (logs.vllm(), []),
    ],
)
def test_graphs_that_did_not_run_are_told(read, text, says):
    found = [*read(text).slow_graphs()]
    assert len(found) == len(says)
    assert all(part in line for part, line in zip(says, found, strict=True))


def test_a_file_without_such_lines_is_no_log(read):
    assert read("batch,K,step ms\n1,0,8.47\n") is None
    assert read("") is None

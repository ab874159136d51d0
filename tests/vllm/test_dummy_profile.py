"""vLLM's own dummy batch through its own routers: no expert, or the same for all."""

import inspect

import pytest

from benchmarks import vllm_dummy_profile as dummy


@pytest.mark.parametrize(
    ("router", "skips", "experts"),
    [("fused", True, 0), ("grouped", True, 0), ("grouped", False, dummy.TOP_K)],
)
def test_the_dummy_batch_runs_no_union(router, skips, experts):
    """Real tokens run most of the experts."""
    profiled, real = dummy.experts_run(router, skips)
    assert profiled == experts
    assert real > 100


def test_padding_is_skipped_unless_the_environment_says_otherwise(monkeypatch):
    """`VLLM_MOE_SKIP_PADDING`, on by default, is what the routers ask."""
    monkeypatch.setenv("VLLM_MOE_SKIP_PADDING", "0")
    assert dummy.experts_run("grouped")[0] == dummy.TOP_K


def test_dummy_steps_are_padding_where_they_are_timed():
    """`_dummy_run` without `is_profile`, which is what marks them so."""
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    from tests.vllm.test_contract import source

    manager = adaptive.AdaptiveVerificationManager
    assert "is_profile" not in inspect.getsource(manager.batches_to_profile)
    text = source("v1.worker.gpu.model_runner")
    assert "is_padding=not is_profile" in text
    assert "self._dummy_run(**batch)" in text
    assert "is_profile: bool = False" in text


def test_without_experts_the_budget_never_trims_one_request():
    """By the true curve of a composed table it then loses where drafts are doubtful."""
    found = {(c, b, n): made for c, b, n, made in dummy.decisions()}
    assert all(made.loss == 0.0 for (*_, n), made in found.items() if n == "true")
    for confidence in dummy.CONFIDENCES:
        assert found[confidence, 1, "no expert"].drafts == dummy.DRAFTS
    assert found[0.6, 1, "true"].drafts < dummy.DRAFTS
    assert found[0.6, 1, "no expert"].loss > 0.1

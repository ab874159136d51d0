"""SGLang's own adaptive parameters, on the schedule that is exported for them."""

from types import SimpleNamespace

import pytest

from tests.exported import shipped_table, write_schedule

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "adaptive.json"
    return write_schedule(shipped_table(H200), "sglang", path, 3, 5, 0)


def test_every_batch_takes_its_own_steps(written):
    """Read and routed by `AdaptiveSpeculativeParams`; the largest is the start."""
    from sglang.srt.speculative import adaptive_spec_params as adaptive

    steps = adaptive.resolve_candidate_steps_from_config(str(written.path))
    assert f"--speculative-num-steps {max(steps)} " in written.made.command
    params = adaptive.AdaptiveSpeculativeParams(max(steps), str(written.path))
    for batch, drafts in written.chosen.items():
        assert params.get_steps_for_batch(batch) == drafts
    for _ in range(50):
        assert params.on_verify_complete([0] * 4, 4) is None, "nothing adapts"


def test_a_server_resolves_its_flags(written, monkeypatch):
    """Steps of the command are among the candidates, or SGLang would refuse."""
    from sglang.srt.arg_groups import speculative_hook as hook

    words = written.made.command.split()
    steps = int(words[words.index("--speculative-num-steps") + 1])
    args = SimpleNamespace(
        speculative_adaptive_config=str(written.path),
        speculative_eagle_topk=1,
        speculative_num_steps=steps,
    )
    declared: dict[str, object] = {}
    monkeypatch.setattr(hook, "resolving_view", lambda given: given)
    monkeypatch.setattr(
        hook, "declare_resolution", lambda _, __, **values: declared.update(values)
    )
    hook._init_adaptive_speculative_params(args)  # type: ignore[arg-type]
    assert declared == {"speculative_num_draft_tokens": steps + 1}


def test_the_flag_of_graphs_takes_numbers_of_requests():
    from argparse import ArgumentParser

    from sglang.srt.server_args import ServerArgs

    from evict_profile.advice.capture import FLAGS

    ServerArgs.add_cli_args(parser := ArgumentParser())
    taken = parser.parse_args(["--model-path", "m", FLAGS["sglang"], "1", "2"])
    assert taken.cuda_graph_bs_decode == [1, 2]

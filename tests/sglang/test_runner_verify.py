"""The runner inside SGLang: what it answers about cells and steps, on a CPU."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from evict_profile.cells import Cell
from evict_profile.config import load_model
from evict_profile.runner import Runner, RunnerRefusal
from runners.protocol import Refusal
from runners.sglang_verify.rounds import ForcedServing
from tests.sglang.engine import MODELS
from tests.sglang.serving import fp8_target

HERE = Path(__file__).parent
STEPS, TOPK, WIDTHS, BATCHES = 2, 2, [1, 3, 6], [1, 2]
NATURAL = Cell("layers", 6, 0, 16, 2, "natural")
Answer = dict[str, Any]


@pytest.fixture(scope="module")
def model():
    """The toolkit's description of the target that lies beside the stubs."""
    return load_model(str(MODELS / "target/config.json"))


def options(**changes):
    folders = {"model": str(MODELS / "target"), "draft": str(MODELS / "draft")}
    own = {**folders, "steps": STEPS, "topk": TOPK, "attention_backend": "", "tp": 1}
    asked = {
        "device": "cpu",
        "dtype": "auto",
        "layers": "auto",
        "graphs": True,
        "seed": 0,
        "capture_sizes": WIDTHS,
        "max_width": max(WIDTHS),
        "max_context": 24,
        "max_batch": max(BATCHES),
        "batches": BATCHES,
        "engine": own,
    }
    return {**asked, **changes}


@pytest.fixture(scope="module")
def started(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("runner") / "log"
    with Runner("sglang_verify", None, log) as runner:
        yield runner, runner.open(model, options())


@pytest.fixture
def runner(started):
    return started[0]


def measured(runner, cell):
    [sample] = runner.measure(cell, seeds=[3])
    return sample


def test_it_tells_what_it_runs(started, model):
    _, opened = started
    facts = opened["fingerprint"]
    assert facts["engine"] == "sglang"
    assert facts["engine_version"] == metadata.version("sglang")
    assert facts["attention_backend"] == "IntelAMXAttnBackend"
    assert facts["graph_mode"] == "eager"
    assert facts["kernels"] == "stand-in"
    assert facts["layers"] == model.num_layers
    assert (facts["weights"], facts["tp"], facts["ep"]) == ("dummy", 1, 1)
    assert opened["dtype"] == model.dtype
    assert opened["bytes_per_expert"] == model.bytes_per_expert
    assert opened["capture_sizes"] == []
    assert opened["whole"] and opened["clocks"]


@pytest.mark.parametrize(
    ("width", "batch", "union"), [(6, 2, 16), (3, 1, 7), (1, 1, 4)]
)
def test_every_layer_runs_the_forced_union(runner, width, batch, union):
    sample = measured(runner, Cell("layers", width, union, 16, batch, "balanced"))
    assert (sample.union_low, sample.union_high) == (union, union)
    assert sample.observed_width == width
    assert sample.clock_us > 0.0 and sample.reference_us > 0.0


def test_natural_routing_is_the_models_own(runner):
    sample, again = measured(runner, NATURAL), measured(runner, NATURAL)
    assert sample.union_low < sample.union_high
    assert sample.observed_union == again.observed_union


def test_a_step_has_a_clock(runner):
    if metadata.version("sglang") == "0.5.16":
        with pytest.raises(RunnerRefusal) as refused:
            runner.clock(2)
        assert refused.value.kind == "device"
    else:
        clock = runner.clock(2)
        assert len(clock.draft_us) == STEPS + 1
        assert clock.draft_us[0] == 0.0 < clock.draft_us[1] < clock.draft_us[2]
        assert clock.fixed_us >= 0.0
        assert clock.mechanism_us is not None
        widths = [(each.width, each.union, each.context) for each in clock.rounds]
        assert widths == [(3, 13.0, 24.0), (6, 15.0, 24.0)]
        assert all(each.us > clock.draft_us[-1] for each in clock.rounds)
    sample = measured(runner, Cell("layers", 3, 7, 16, 1, "balanced"))
    assert (sample.union_low, sample.observed_width) == (7, 3)


def test_a_round_whose_trees_were_not_cut_is_no_measurement():
    """The plug-in may fail within a round, and then verifies whole trees."""
    serving = ForcedServing()
    serving.width = serving.full_width = 6
    uncut = pytest.raises(Refusal, match="verified 6 tokens a request, not 3")
    with uncut, serving.cutting(3):
        assert serving.active
    assert not serving.active


@pytest.mark.slow
def test_ranks_measure_together(model, tmp_path):
    """On a core each: what one refuses leaves them in step."""
    own = {**options()["engine"], "tp": 2}
    with Runner("sglang_verify", None, tmp_path / "log") as runner:
        opened = runner.open(model, options(engine=own))
        with pytest.raises(RunnerRefusal, match="width 5 is not one of"):
            measured(runner, Cell("layers", 5, 7, 16, 1, "balanced"))
        sample = measured(runner, Cell("layers", 6, 16, 16, 2, "balanced"))
        clock = runner.clock(1)
    assert opened["fingerprint"]["tp"] == 2
    assert (sample.union_low, sample.union_high) == (16, 16)
    assert [each.width for each in clock.rounds] == [3, 6]


@pytest.mark.slow
def test_quantised_weights_are_measured_as_they_were_loaded(tmp_path):
    """FP8 in blocks, whose kernels `fp8_on_cpu` stands in for."""
    target = fp8_target(tmp_path / "target")
    own = {**options()["engine"], "model": str(target)}
    model = load_model(str(target / "config.json"))
    with Runner(str(HERE / "fp8_on_cpu.py"), None, tmp_path / "log") as runner:
        opened = runner.open(model, options(engine=own))
        sample = measured(runner, Cell("layers", 6, 16, 16, 2, "balanced"))
    assert opened["dtype"] == "fp8_block"
    assert opened["fingerprint"]["moe_backend"] == "Fp8MoEMethod-native"
    values = 3 * model.hidden_size * model.moe.expert_width
    assert opened["bytes_per_expert"] == values + values // 16**2 * 4
    assert (sample.union_low, sample.union_high) == (16, 16)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The same shape with weights in it, as transformers saves a model."""
    import torch
    from transformers import AutoConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(AutoConfig.from_pretrained(MODELS / "target"))
    for weight in model.parameters():
        if weight.ndim > 1:  # norms stay as they are
            torch.nn.init.normal_(weight, std=0.2)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_weights_of_a_folder_decide_natural_routes(saved, model, tmp_path):
    own = {**options()["engine"], "model": str(saved)}
    with Runner("sglang_verify", None, tmp_path / "log") as runner:
        opened = runner.open(model, options(engine=own))
        assert opened["fingerprint"]["weights"] == "auto"
        assert measured(runner, NATURAL).observed_union > 12.0

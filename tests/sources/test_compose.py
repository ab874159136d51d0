"""A composed table: the formulas behind its rows, and an origin on every screen."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from markupsafe import Markup

from evict_profile.config import load_model
from evict_profile.errors import ConfigError, DataError, MeasurementError
from evict_profile.fit.fitted import fitted_of_table
from evict_profile.records import replace, to_mapping
from evict_profile.report import replay_page
from evict_profile.sources import compose
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.asked import assumption, placement_of
from evict_profile.sources.compose import cells_of, composer_of, sweep_of
from evict_profile.sources.pairs import kernels_of
from evict_profile.table import Composition, CostTable, find_table, measured
from evict_profile.table.document import file_sha256
from evict_profile.traces.schema import NEEDED, Metadata, mark
from tests.command import evict, refused
from tests.shipped import tracked
from tests.sources.wheel import (
    GPU,
    PAIR,
    attention_rows,
    attention_us,
    gemm_us,
    moe_rows,
    moe_us,
    write_rows,
    write_wheel,
)
from tests.traces.synthetic import ABOUT, Plan, make_table

MODEL = load_model("qwen3-30b-a3b")
SMALL = replace(ABOUT, depth=1, topk=2, nodes=2)
UNROUTED = replace(SMALL, layers=0, experts=0, top_k=0)
"""A trace that may be of any model."""


@pytest.fixture(scope="module")
def composer(wheel):
    return composer_of(open_source(wheel), [PAIR], MODEL)


@pytest.fixture(scope="module")
def table(composed_path):
    return CostTable.load(composed_path)


def step_us(tokens, union, context, batch):
    norm = 3.0 + 8 * tokens * 2048 / 4800 / 1e3
    products = [(5120, 2048), (2048, 4096), (128, 2048)]
    attention = (attention_us(batch, context) * attention_us(tokens, context)) ** 0.5
    layer = sum(gemm_us(tokens, n, k) for n, k in products) + 2 * norm + attention
    head = gemm_us(tokens, 65536, 2048) * 151936 / 65536 + 2 * norm
    return 48 * (layer + moe_us(tokens, union)) + head


@pytest.mark.parametrize("place", [(1, 8.0, 512, 1), (64, 97.0, 2048, 4)])
def test_a_step_is_the_sum_of_its_parts(composer, place):
    found = composer.step(*place)
    assert found.value == pytest.approx(step_us(*place))
    assert found.low <= found.value <= found.high


def test_cells_hold_their_parts(composer):
    sweep = sweep_of((512,))
    small = replace(sweep.grid, width=(1, 8), batch=(1, 4), validation=2)
    cells = cells_of(composer, replace(sweep, grid=small))
    parts = cells.filter(regex="_us$").drop(columns="reference_us")
    clock_us = parts.pop("clock_us")
    assert parts.sum(axis=1).to_numpy() == pytest.approx(clock_us)
    assert "experts_us" in parts


def test_a_grid_ends_where_the_rows_of_attention_end(composer, tmp_path):
    """Of many requests they end at a shorter context."""
    assert composer.covers(8, 8192, 256) and not composer.covers(8, 32768, 1)
    assert not composer.covers(16, 512, 128), "wide, and more than a chain"
    rows = [r for r in attention_rows() if r["batch_size"] < 256 or r["isl"] < 8192]
    root = write_wheel(tmp_path / "wheel")
    write_rows(root, "attention", rows)
    short = composer_of(open_source(root), [PAIR], MODEL)
    assert short.covers(1, 8192, 16) and not short.covers(1, 8192, 17)
    sweep = sweep_of((512, 8192))
    grid = replace(sweep.grid, width=(1, 8), batch=(1, 64), validation=0)
    cells = cells_of(short, replace(sweep, grid=grid))
    assert {*zip(cells["batch"], cells["context"], strict=True)} == {
        (1, 512),
        (1, 8192),
        (64, 512),
    }


def test_a_table_ends_at_the_context_to_which_its_fit_passes(composer, monkeypatch):
    def refuse(composer, sweep, gates):
        if len(sweep.grid.context) > 2:
            raise MeasurementError("held-out cells")
        return sweep.grid.context

    monkeypatch.setattr(compose, "_fitted", refuse)
    assert compose.compose(composer, sweep_of()) == (512, 2048)


def test_the_table_costs_what_the_formulas_say(table):
    for batch, context in ((1, 512), (4, 2048)):
        cost = table.step_cost_us(batch, context)
        for tokens in (1, 4, 16, 64):
            union = MODEL.uniform_union(tokens * batch)
            expected = step_us(tokens * batch, union, context, batch)
            assert cost[tokens * batch] == pytest.approx(expected, rel=0.07)


def test_intervals_hold_the_composition_error_and_attention(table, composer):
    cost = table.costs(1, 2048)
    step = composer.step(64, MODEL.uniform_union(64), 2048, 1)
    low, high = (us[64] / cost.step_cost_us[64] for us in (cost.low_us, cost.high_us))
    assert low < 0.64 - (1 - step.low / step.value) + 1e-6
    assert high > 1.36 + step.high / step.value - 1 - 1e-6
    assert np.all(cost.low_us > 0)


def test_the_origin_is_in_the_table_and_on_its_screen(table, composed_path):
    made = table.provenance
    assert isinstance(made, Composition)
    assert made.rows_used == 12
    assert all(name.startswith("aiconfigurator_core/") for name in made.files)
    assert made.licence == "Apache-2.0"
    assert '"origin": "composed"' in composed_path.read_text()
    said = evict("show", composed_path, folder=composed_path.parent).stdout
    assert "composed from public rows, not measured" in said


@pytest.mark.parametrize(
    "words",
    [
        ("show", "TABLE"),
        ("diff", "TABLE", "TABLE"),
        ("calibrate", "TABLE", "TRACE", "--tables", "OUT"),
        ("replay", "TABLE", "TRACE", "--seeds", "1"),
    ],
    ids=lambda words: words[0],
)
def test_every_screen_says_that_costs_are_composed(
    composed_path, tmp_path, words, monkeypatch
):
    for drawing in ("bars", "width_curves"):
        monkeypatch.setattr(replay_page, drawing, lambda *given: Markup(""))
    trace = tmp_path / "trace.parquet"
    plan = Plan(prompts=5, tokens=2, workloads=("code",), about=SMALL)
    steps = make_table(plan).select(NEEDED)
    pq.write_table(mark(steps, Metadata(UNROUTED)), trace)
    names = {"TABLE": composed_path, "TRACE": trace, "OUT": tmp_path / "out"}
    done = evict(*(names.get(word, word) for word in words), folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "composed from public rows, not measured" in done.stdout
    for written in tmp_path.glob("*.html"):
        assert "composed from public rows, not measured" in written.read_text()


def test_there_is_nothing_to_measure_again(table, composed_path):
    """Its cells lie beside it; an exact lookup never finds it."""
    with pytest.raises(DataError, match="composed from public rows"):
        measured(table.provenance)
    said = refused("check", composed_path, "--recheck", folder=composed_path.parent)
    assert "no sweep of its to repeat" in said
    fitted = fitted_of_table(composed_path)[0]
    assert len(fitted.frame) == table.provenance.samples
    assert fitted.validation.error == table.fit.validation
    served = {**to_mapping(table.key), "graph_mode": "full"}
    with pytest.raises(DataError, match="graph_mode: full here, composed there"):
        find_table(composed_path.parents[3], served)


def test_the_list_names_gpus_and_engines(wheel, tmp_path):
    done = evict("estimate", "--from", wheel, "--json", folder=tmp_path)
    [found] = json.loads(done.stdout)
    assert found == {"GPU": GPU, "engine": "sglang", "version": "0.5.14"}
    said = evict("estimate", "--from", wheel, folder=tmp_path).stdout
    assert GPU in said and "Apache-2.0" in said


def test_the_fastest_kernel_that_passes_its_gates_is_composed(tmp_path):
    """A faster one that reads less than its weights is not; others are named."""
    root, names = write_wheel(tmp_path), ("slow", "cached")
    slow, cached = (
        [row | {"us": times * row["us"]} for row in moe_rows(kernel_source=name)]
        for name, times in zip(names, (1.3, 0.1), strict=True)
    )
    write_rows(root, "moe", [*slow, *moe_rows(), *cached])
    source = open_source(root)
    kernels = kernels_of(source, MODEL, GPU, "sglang", "bf16", 1)
    found = composer_of(source, kernels, MODEL)
    assert found.experts.pair == PAIR
    assert set(found.other_kernels) == set(names)


def test_of_two_formats_the_published_one_with_more_bits_is_composed(tmp_path):
    """Whichever is faster; the other where the first does not pass its gates."""
    root, fast = write_wheel(tmp_path), {"moe_dtype": "w4a8_mxfp4_mxfp8"}
    model = replace(MODEL, checkpoint_dtype="mxfp4")
    for times, dtype in ((0.3, "w4a16_mxfp4"), (3.0, "w4a8_mxfp4_mxfp8")):
        slow = [
            row | {"us": times * row["us"]} for row in moe_rows(moe_dtype="w4a16_mxfp4")
        ]
        quick = [row | {"us": 0.29 * row["us"]} for row in moe_rows(**fast)]
        write_rows(root, "moe", slow + quick)
        source = open_source(root)
        kernels = kernels_of(source, model, GPU, "sglang", "mxfp4", 1)
        found = composer_of(source, kernels, model)
        assert (found.experts.pair.dtype, found.other_kernels) == (dtype, ())


def test_a_layer_without_rows_goes_by_its_bytes(tmp_path):
    """And by what the kernel's other layers take."""
    root, model = write_wheel(tmp_path), load_model("glm-4.5-air")
    others = [
        row | {"hidden_size": hidden, "inter_size": width, "us": us * row["us"]}
        for hidden, width, us in ((4096, 1536, 4.0), (4096, 1024, 2.5))
        for row in moe_rows()
    ]
    write_rows(root, "moe", [*moe_rows(), *others])
    source = open_source(root)
    kernels = kernels_of(source, model, GPU, "sglang", "bf16", 2)
    assert [pair.tp for pair in kernels] == [2]
    assert len(composer_of(source, kernels, model).experts.others) == 3


@pytest.mark.parametrize(
    ("gpu", "dtype", "least"),
    [("h200_sxm", "bf16", 16), ("b300_sxm", "bf16", 8), ("b300_sxm", "nvfp4", 2)],
)
def test_weights_take_the_fewest_gpus_that_hold_them(gpu, dtype, least):
    """744 billion weights."""
    model = load_model("glm-5")
    assert placement_of(model, gpu, "vllm", dtype).tp == least
    with pytest.raises(ConfigError, match=f"weights alone.*give --tp {least} or more"):
        placement_of(model, gpu, "vllm", dtype, least // 2)


@pytest.mark.parametrize(
    ("model", "gpu", "least"),
    [("deepseek-v3", "h100", 16), ("mixtral-8x7b", "rtx_pro_6000_server", 2)],
)
def test_gpus_also_hold_the_cache_of_the_largest_batch(model, gpu, least):
    """625 GB, and 4.3 of latents on each rank; 87 GB, and 16 of keys and values."""
    spec = load_model(model)
    assert placement_of(spec, gpu, "vllm").tp == least
    assert placement_of(spec, gpu, "vllm", tp=least // 2).tp == least // 2


def test_weights_are_stated_in_units_of_two_to_the_thirtieth():
    """470e9 bytes."""
    with pytest.raises(ConfigError, match="its weights alone take 438 GiB"):
        placement_of(load_model("qwen3-235b-a22b"), "h200", "sglang", tp=2)


def test_a_cache_that_fits_on_no_number_of_gpus_ends_in_a_refusal():
    """Each rank has a copy of all latents."""
    latents = replace(load_model("deepseek-v3").attention, kv_lora_rank=10**6)
    model = replace(load_model("deepseek-v3"), attention=latents)
    with pytest.raises(ConfigError, match="does not divide the 128 attention heads"):
        placement_of(model, "h200", "vllm")


@pytest.mark.parametrize(
    "given", ["H100 SXM", "h100", "NVIDIA H100", "nvidia-h100-sxm"]
)
def test_gpus_and_engines_are_found_however_they_are_spelled(given):
    assert placement_of(MODEL, given, "vLLM")[:2] == ("h100_sxm", "vllm")


def test_weights_are_by_default_as_published():
    model = load_model("deepseek-v3")
    asked = placement_of(model, "H200-sxm", "sglang")
    assert asked == (GPU, "sglang", "fp8_block", 8)
    assert "as fp8_block, as deepseek-v3 is published" in assumption(model)


@pytest.mark.parametrize("asked", ["h300", "b20", "h", "h200_s"])
def test_an_unknown_gpu_is_answered_with_the_known_ones(asked):
    with pytest.raises(ConfigError, match=f"--gpu {asked}: .* of a100_sxm, .*{GPU}"):
        placement_of(MODEL, asked, "sglang")


def test_shipped_tables_are_whole_and_name_their_source():
    shipped = tracked("cost_tables/composed/*.json")
    assert len(shipped) > 10
    for path in shipped:
        made = CostTable.load(path).provenance
        assert "AIConfigurator" in made.attribution
        assert file_sha256(path.with_suffix(".parquet")) == made.samples_sha256

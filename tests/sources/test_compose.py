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
from evict_profile.report import calibration_page, replay_page
from evict_profile.sources import compose
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.asked import (
    Deployment,
    assumption,
    check_fit,
    deployment_of,
)
from evict_profile.sources.compose import composer_of
from evict_profile.sources.composer import cells_of, sweep_of
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
    assert found.us == pytest.approx(step_us(*place))
    assert found.low <= found.us <= found.high


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
    assert low < 0.64 - (1 - step.low / step.us) + 1e-6
    assert high > 1.36 + step.high / step.us - 1 - 1e-6
    assert np.all(cost.low_us > 0)


def test_the_origin_is_in_the_table_and_on_its_screen(table, composed_path):
    made = table.provenance
    assert isinstance(made, Composition)
    assert made.rows_used == 12
    assert made.rows_dropped["other routings, kept to judge by"] == 13
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
    for module, drawing in (
        *((replay_page, "bars"), (replay_page, "width_curves")),
        (calibration_page, "reliability"),
    ):
        monkeypatch.setattr(module, drawing, lambda *given: Markup(""))
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


def test_the_list_names_models_or_the_data_types_of_one(tmp_path):
    """And which sizes take the experts' cost from layers near by."""
    words = ("estimate", "--list", "--gpu", "h200", "--engine", "sglang")
    said = evict(*words, folder=tmp_path).stdout
    assert all(word in said for word in (GPU, MODEL.name, "Apache-2.0"))
    done = evict(*words, "--model", MODEL.name, "--json", folder=tmp_path)
    found = {each["dtype"]: each for each in json.loads(done.stdout)}
    assert found["bfloat16"]["GPU"] == GPU
    assert "1" in found["bfloat16"]["tp"]
    assert "tp, by layers near by" in found["bfloat16"]


def test_the_fastest_kernel_that_passes_its_gates_is_composed(tmp_path):
    """A faster one that reads less than its weights is not; others are named."""
    root, names = write_wheel(tmp_path), ("slow", "cached")
    slow, cached = (
        [row | {"us": times * row["us"]} for row in moe_rows(kernel_source=name)]
        for name, times in zip(names, (1.3, 0.1), strict=True)
    )
    write_rows(root, "moe", [*slow, *moe_rows(), *cached])
    source = open_source(root)
    kernels = kernels_of(source, MODEL, GPU, "sglang", "bf16")
    found = composer_of(source, kernels, MODEL)
    assert found.experts.pair == PAIR
    assert set(found.other_kernels) == set(names)


@pytest.mark.parametrize(
    ("gpu", "dtype", "least"),
    [("h200_sxm", "bf16", 16), ("b300_sxm", "bf16", 8), ("b300_sxm", "nvfp4", 2)],
)
def test_weights_need_as_many_gpus_as_hold_them(gpu, dtype, least):
    """744 billion weights; what is not known of a GPU or a type refuses nothing."""
    model = load_model("glm-5")
    check_fit(model, Deployment(gpu, "vllm", dtype, least))
    check_fit(model, Deployment("a new one", "vllm", dtype, 1))
    check_fit(model, Deployment(gpu, "vllm", "a new one", 1))
    with pytest.raises(ConfigError, match=f"weights alone.*give --tp {least} or more"):
        check_fit(model, Deployment(gpu, "vllm", dtype, least // 2))


@pytest.mark.parametrize(
    ("name", "gpu", "engine", "dtype"),
    [
        ("deepseek-v3", "h200", "sglang", "fp8_block"),
        ("gpt-oss-120b", "b200", "trtllm", "w4a8_mxfp4_mxfp8"),
        ("qwen3-30b-a3b", "h100", "sglang", "bfloat16"),
    ],
)
def test_weights_are_by_default_as_published(name, gpu, engine, dtype):
    model = load_model(name)
    asked = deployment_of(model, gpu, engine, None, None)
    assert asked.dtype == dtype
    assert f"taken as {dtype}, as {name} is published" in assumption(model, asked)


def test_other_rows_are_taken_where_none_are_as_published():
    model = load_model("deepseek-v3")
    asked = deployment_of(model, "rtx_pro_6000_server", "vllm", None, None)
    assert asked.dtype == "nvfp4"
    assert "no usable rows are of fp8_block" in assumption(model, asked)


def test_a_model_that_is_not_listed_has_to_fit_as_well():
    """In the format of its checkpoint, and on one GPU unless more are given."""
    large = replace(load_model("deepseek-v3"), name="my-own")
    assert deployment_of(large, "h200", "sglang", None, 8).dtype == "fp8_block"
    with pytest.raises(ConfigError, match="my-own in fp8_block does not fit on 1"):
        deployment_of(large, "h200", "sglang", None, None)


def test_shipped_tables_are_whole_and_name_their_source():
    shipped = tracked("cost_tables/composed/*.json")
    assert len(shipped) > 10
    for path in shipped:
        made = CostTable.load(path).provenance
        assert "AIConfigurator" in made.attribution
        assert file_sha256(path.with_suffix(".parquet")) == made.samples_sha256

"""All pairs side by side: those that pass with prices, the others with a reason."""

import pandas as pd
import pytest

from evict_profile.errors import Interrupted, StoreError
from evict_profile.report.public import atlas_page, counts, heat
from evict_profile.sources import atlas as atlas_module
from evict_profile.sources import composer
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.atlas import atlas, choose, first_failures
from evict_profile.table import Gate
from tests.command import evict, refused
from tests.sources.test_compose import step_us
from tests.sources.wheel import attention_rows, moe_rows, write_rows, write_wheel
from tests.traces.synthetic import Plan, write_trace


@pytest.fixture(scope="module", autouse=True)
def small_grid():
    """Fewer cells to fit; which steps an atlas shows does not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composer, "WIDTHS", (1, 4, 16, 64))
        patch.setattr(composer, "BATCHES", (1, 4))
        patch.setattr(composer, "UNIONS", 5)
        yield


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Of a wheel with a good kernel, a slow one, and a type without products."""
    root = write_wheel(tmp_path_factory.mktemp("atlas") / "wheel")
    slow = [
        row | {"kernel_source": "slow", "us": 9.0 * row["us"]} for row in moe_rows()
    ]
    odd = moe_rows(moe_dtype="fp8", kernel_source="odd", moe_tp_size=1)
    cut = moe_rows(moe_tp_size=2)
    write_rows(root, "moe", moe_rows() + slow + odd + cut)
    write_rows(root, "attention", attention_rows())
    source = open_source(root)
    return atlas(source, choose(source), root.with_name("kept"))


def test_a_model_is_priced_on_as_few_gpus_as_hold_it(steps):
    assert set(steps["model"]) == {"qwen3-30b-a3b"}
    assert set(steps["tp"]) == {1}
    assert set(steps["kernel"]) == {"fused_moe", "slow", "odd"}


def test_what_a_gate_refuses_is_kept_with_its_reason(steps):
    refused = steps.set_index("kernel")["refused"]
    assert refused["slow"].startswith("slope: an expert implies 0.09 of peak")
    assert set(refused["fused_moe"]) == {""}


def test_steps_are_what_the_formulas_say(steps):
    good = steps[steps["kernel"] == "fused_moe"].set_index(["batch", "width"])
    plain = step_us(4, 128 * (1 - (1 - 8 / 128) ** 4), 1024, 4)
    wide = step_us(64, 128 * (1 - (1 - 8 / 128) ** 64), 1024, 4)
    assert good["step_us"][4, 1] == pytest.approx(plain)
    assert good["by_union"][4, 16] == pytest.approx(wide / plain)
    alike = step_us(64, 8, 1024, 4) / step_us(4, 8, 1024, 4)
    assert good["all_alike"][4, 16] == pytest.approx(alike)


def test_pairs_are_counted_by_the_gate_that_refused_them(steps):
    failed = first_failures(steps)
    assert dict(failed) == {"": 1, "slope": 2}
    assert counts(steps).startswith("1 of 3 pairs compose")


def test_a_pair_that_is_kept_is_not_composed_again(steps, wheel, tmp_path):
    source, kept = open_source(wheel), tmp_path / "kept"
    steps[steps["kernel"] == "fused_moe"].assign(step_us=7.0).to_parquet(kept)
    again = atlas(source, choose(source), kept)
    assert set(again["step_us"]) == {7.0}


def test_a_pair_that_another_release_kept_is_composed_again(steps, wheel, tmp_path):
    source, kept = open_source(wheel), tmp_path / "kept"
    old = steps[steps["kernel"] == "fused_moe"].assign(release="0.0.1", step_us=7.0)
    for rows in (old, old.drop(columns="release")):
        rows.to_parquet(kept)
        assert 7.0 not in set(atlas(source, choose(source), kept)["step_us"])


def test_a_page_of_nothing_but_refusals_is_written(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(atlas_module, "_judged", lambda composer: [{"refused": "x: y"}])
    source = open_source(wheel)
    page = atlas_page(atlas(source, choose(source), tmp_path / "kept"))
    assert "0 of 1 pairs compose" in page


def test_ctrl_c_keeps_what_is_done(wheel, tmp_path, monkeypatch):
    def stop(composer):
        raise KeyboardInterrupt

    source = open_source(wheel)
    monkeypatch.setattr(atlas_module, "_judged", lambda composer: [{"refused": "x: y"}])
    first = atlas(source, choose(source), tmp_path / "kept")
    monkeypatch.setattr(atlas_module, "_judged", stop)
    [(model, pair)] = choose(source)
    other = pair._replace(kernel="another")
    with pytest.raises(Interrupted, match="the same command continues"):
        atlas(source, [(model, pair), (model, other)], tmp_path / "kept")
    assert pd.read_parquet(tmp_path / "kept").equals(first)


def test_a_damaged_file_of_kept_pairs_is_a_sentence(wheel, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("no parquet")
    with pytest.raises(StoreError, match="is damaged"):
        atlas(open_source(wheel), [], kept)


def test_a_pair_whose_fit_is_refused_is_told_so(wheel, tmp_path, monkeypatch):
    failed = (Gate("held-out cells", False, "median 9 %"),)
    monkeypatch.setattr(atlas_module, "fit_cells", lambda composer, sweep: None)
    monkeypatch.setattr(atlas_module, "fit_gates", lambda fitted: failed)
    source = open_source(wheel)
    refused = atlas(source, choose(source), tmp_path / "kept")["refused"]
    assert list(refused) == ["held-out cells: median 9 %"]


def test_the_page_shows_both(steps):
    page = atlas_page(steps)
    [[times]] = [
        list(by_gpu.values())
        for by_gpu in heat(steps[steps["kernel"] == "fused_moe"]).values()
    ]
    assert f">{times:.2f}</td>" in page
    assert "an expert implies 0.09 of peak" in page
    assert "not measured" in page


def test_the_command_writes_page_and_numbers(wheel, tmp_path):
    done = evict("atlas", "--from", wheel, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "1 of 1 pairs compose: 1 GPUs, 1 engines, 1 models" in done.stdout
    assert len(pd.read_parquet(tmp_path / "atlas.parquet")) == 28
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"atlas.html", "atlas.parquet"}


@pytest.mark.parametrize("text", ["PAR1", None])
def test_numbers_do_not_take_the_place_of_another_file(wheel, tmp_path, text):
    """A trace that has the name of the page."""
    other = tmp_path / "trace.parquet"
    other.write_text(text) if text else write_trace(other, Plan(prompts=1, tokens=2))
    before = other.read_bytes()
    says = refused("atlas", "--from", wheel, "--out", "trace.html", folder=tmp_path)
    assert "trace.parquet: is there already" in says
    assert other.read_bytes() == before

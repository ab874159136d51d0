"""All pairs side by side: those that pass with prices, the others with a reason."""

from pathlib import Path

import pandas as pd
import pytest

from evict_profile.report.atlas_page import atlas_page, heat
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.atlas import atlas, choose
from tests.command import evict
from tests.sources.test_compose import step_us
from tests.sources.wheel import attention_rows, moe_rows, write_rows, write_wheel


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
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
    return atlas(source, choose(source))


def test_a_model_is_priced_on_as_few_gpus_as_hold_it(steps: pd.DataFrame) -> None:
    assert set(steps["model"]) == {"qwen3-30b-a3b"}
    assert set(steps["tp"]) == {1}
    assert set(steps["kernel"]) == {"fused_moe", "slow", "odd"}


def test_what_a_gate_refuses_is_kept_with_its_reason(steps: pd.DataFrame) -> None:
    refused = steps.set_index("kernel")["refused"]
    assert refused["slow"].startswith("slope: an expert implies 0.09 of peak")
    assert set(refused["fused_moe"]) == {""}


def test_steps_are_what_the_formulas_say(steps: pd.DataFrame) -> None:
    good = steps[steps["kernel"] == "fused_moe"].set_index(["batch", "width"])
    plain = step_us(4, 128 * (1 - (1 - 8 / 128) ** 4), 1024, 4)
    wide = step_us(64, 128 * (1 - (1 - 8 / 128) ** 64), 1024, 4)
    assert good["step_us"][4, 1] == pytest.approx(plain)
    assert good["by_union"][4, 16] == pytest.approx(wide / plain)
    alike = step_us(64, 8, 1024, 4) / step_us(4, 8, 1024, 4)
    assert good["all_alike"][4, 16] == pytest.approx(alike)


def test_the_page_shows_both(steps: pd.DataFrame) -> None:
    page = atlas_page(steps)
    [[times]] = [
        list(by_gpu.values())
        for by_gpu in heat(steps[steps["kernel"] == "fused_moe"]).values()
    ]
    assert f">{times:.2f}</td>" in page
    assert "an expert implies 0.09 of peak" in page
    assert "not measured" in page


def test_the_command_writes_page_and_numbers(wheel: Path, tmp_path: Path) -> None:
    done = evict("atlas", "--from", wheel, folder=tmp_path)
    assert done.exit_code == 0, done.output
    numbers = pd.read_parquet(tmp_path / "atlas.parquet")
    assert (tmp_path / "atlas.html").is_file()
    assert len(numbers) == 28

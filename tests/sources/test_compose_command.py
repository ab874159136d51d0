"""What the command says of a source, and of one that cannot be used."""

from pathlib import Path

from tests.command import evict, refused
from tests.sources.wheel import GPU, KERNEL


def test_the_list_names_models_that_can_be_composed(
    wheel: Path, tmp_path: Path
) -> None:
    said = evict("compose", "--list", "--from", wheel, folder=tmp_path).stdout
    assert GPU in said
    assert "qwen3-30b-a3b" in said
    assert "Apache-2.0" in said


def test_the_list_of_a_model_names_its_kernels(wheel: Path, tmp_path: Path) -> None:
    said = evict(
        "compose",
        "--list",
        "--from",
        wheel,
        "--model",
        "qwen3-30b-a3b",
        folder=tmp_path,
    ).stdout
    assert KERNEL in said
    assert "1x1" in said


def test_a_model_without_rows_is_told_the_nearest_shapes(
    wheel: Path, tmp_path: Path
) -> None:
    said = refused(
        "compose", "--list", "--from", wheel, "--model", "olmoe-1b-7b", folder=tmp_path
    )
    assert "the nearest are hidden 2048, experts 128 of width 768, top-8" in said


def test_an_engine_without_rows_is_refused(wheel: Path, tmp_path: Path) -> None:
    said = refused(
        "compose", "--list", "--from", wheel, "--engine", "mlc", folder=tmp_path
    )
    assert "no rows of any GPU under mlc" in said

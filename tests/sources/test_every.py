"""All that a source covers: tables of what passes, a reason for the rest."""

from types import SimpleNamespace

import pytest

from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.sources import composer, every
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.every import compose_all, newest_pairs
from evict_profile.table import CostTable
from tests.command import evict
from tests.sources.wheel import attention_rows, moe_rows, write_rows, write_wheel


@pytest.fixture(scope="module", autouse=True)
def small_grid():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composer, "WIDTHS", (1, 4, 16, 64))
        patch.setattr(composer, "BATCHES", (1, 4))
        patch.setattr(composer, "UNIONS", 5)
        yield


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A good kernel, a slow one, a type whose products are bf16's, other shardings."""
    root = write_wheel(tmp_path_factory.mktemp("mixed") / "wheel")
    slow = [row | {"us": 9.0 * row["us"]} for row in moe_rows(kernel_source="slow")]
    odd = moe_rows(moe_dtype="fp8", kernel_source="odd", moe_tp_size=1)
    cut = moe_rows(moe_tp_size=2) + moe_rows(moe_ep_size=2)
    write_rows(root, "moe", moe_rows() + slow + odd + cut)
    write_rows(root, "attention", attention_rows())
    return root


def test_a_model_is_covered_on_as_few_gpus_as_hold_it(mixed, monkeypatch):
    """Its weights take 61 GB in bf16, and 85 % of 60 GB hold less."""
    chosen = list(newest_pairs(open_source(mixed)))
    assert {model.name for model, _ in chosen} == {"qwen3-30b-a3b"}
    kernels = {(pair.kernel, pair.tp, pair.ep) for _, pair in chosen}
    assert kernels == {(name, 1, 1) for name in ("fused_moe", "slow", "odd")}
    small = SimpleNamespace(memory_gb=60.0)
    monkeypatch.setattr(Source, "facts", lambda self, gpu: small)
    chosen = {(pair.kernel, pair.tp) for _, pair in newest_pairs(open_source(mixed))}
    assert chosen == {("fused_moe", 2), ("odd", 1)}


def test_the_command_writes_tables_a_page_and_counts(mixed, tmp_path):
    done = evict("compose", "--all", "--from", mixed, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "2 of 3 pairs have a table" in done.stdout
    assert "slope" in done.stdout
    made = map(CostTable.load, (tmp_path / "composed").glob("*/*/*/1.0.0.json"))
    assert {table.key.moe_backend for table in made} == {"fused_moe", "odd"}
    assert "fused_moe" in (tmp_path / "composed/tables.html").read_text()
    reasons = (tmp_path / "composed/composed.json").read_text()
    assert "an expert implies 0.09 of peak" in reasons


def test_what_is_noted_is_not_composed_again(mixed, tmp_path, monkeypatch):
    """Ctrl-C keeps it; a table that was deleted and another release's are composed."""
    table, asked = tmp_path / "table.json", []

    def played(composer, sweep):
        kernel = composer.experts.pair.kernel
        asked.append(kernel)
        if asked == ["fused_moe", "slow", "odd"]:
            raise KeyboardInterrupt
        if kernel == "slow":
            raise MeasurementError("not composed, since slope: 9")
        if kernel == "odd":
            raise ConfigError("none")
        table.touch()
        return None, None

    monkeypatch.setattr(every, "compose", played)
    monkeypatch.setattr(every, "export_composed", lambda *_: table)
    source = open_source(mixed)
    by_kernel = {pair.kernel: (model, pair) for model, pair in newest_pairs(source)}
    chosen = [by_kernel[kernel] for kernel in ("fused_moe", "slow", "odd")]
    with pytest.raises(KeyboardInterrupt):
        compose_all(source, chosen, tmp_path)
    outcomes = compose_all(source, chosen, tmp_path)
    assert asked[3:] == ["odd"]
    whys = [{"why": "slope: 9"}, {"why": "rows: none"}]
    assert [*outcomes.values()] == [{"table": str(table)}, *whys]
    table.unlink()
    compose_all(source, chosen, tmp_path)
    assert asked[4:] == ["fused_moe"]
    monkeypatch.setattr(every, "RELEASE", "another")
    compose_all(source, chosen, tmp_path)
    assert asked[5:] == ["fused_moe", "slow", "odd"]

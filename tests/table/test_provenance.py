"""What an origin says of the rows and layers behind its costs."""

from evict_profile.config import load_model
from evict_profile.records import replace
from tests.exported import shipped_table

TABLE = shipped_table("nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1")


def test_rows_near_by_are_told():
    near = {"gemm of fp8_block": "fp8", "mla of num_heads 24": "16 and 32"}
    made = replace(TABLE.provenance, stand_ins=near)
    assert made.caveats[-1] == (
        "rows near by stand in where there are none (gemm of fp8_block: fp8; "
        "mla of num_heads 24: 16 and 32)"
    )
    assert len(made.caveats) == len(TABLE.provenance.caveats) + 1


def test_layers_without_rows_are_told():
    """An older table says nothing of them, so that all may lack their rows."""
    model = load_model("glm-5")
    for lacking, told in ((("sparse",), True), ((), False), (None, True)):
        made = replace(TABLE.provenance, without_kernels=lacking)
        found = replace(TABLE, model=model, provenance=made).own_caveats
        assert any("78 sparse are costed by" in each for each in found) == told

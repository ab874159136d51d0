"""SGLang's tree kernels on cut trees, where SGLang is installed."""

import importlib.util
import json

import pytest

from benchmarks import sglang_kernels

SGLANG = importlib.util.find_spec("sglang") is not None


@pytest.mark.skipif(not SGLANG, reason="sglang is not installed here")
def test_kernels_agree_with_plain_python(tmp_path, monkeypatch):
    monkeypatch.setattr(sglang_kernels, "ROUNDS", 1)
    out = tmp_path / "kernels.json"
    assert sglang_kernels.main(["--out", str(out)]) == 0
    assert json.loads(out.read_text())["wrong"] == {}

"""Steps that two draft lengths predict, beside those that were probed."""

import pytest

from benchmarks import llama_probe
from benchmarks.llama_probe import Setting
from evict_profile.config import load_model
from evict_profile.served.probe.record import Probed, Wave, append, resume
from evict_profile.served.probe.server import ServerInfo

ASKED = [Setting("t"), *(Setting("t", "d", k, 0.7) for k in (1, 4, 8))]


@pytest.mark.parametrize(("off", "missed"), [(1.0, False), (1.05, True)])
def test_steps_between_are_judged(tmp_path, monkeypatch, off, missed):
    monkeypatch.setattr(llama_probe, "load_model", lambda _: load_model("tiny"))
    files = [tmp_path / f"{number}.jsonl" for number in range(len(ASKED))]
    for setting, file in zip(ASKED, files, strict=True):
        k = setting.n_max
        about = ServerInfo("http://a", "llama.cpp", "1", "t", k, k, 1, {})
        step_us = 1e4 + 1e4 * (k > 0) + 2e3 * k
        rate = (1 + k / 2) * 1e6 / step_us / (off if k == 4 else 1.0)
        resume(file, Probed(about, "raw"))
        for number in range(3):
            append(file, Wave(number, 1, rate, 1 + k / 2, 99.0, 0, 0.0, 1.0))
    rows = llama_probe.compared(ASKED, files)
    assert [row["setting"] for row in rows] == ["n_max 4, accepted 0.7"]
    assert rows[0]["predicted_us"] == pytest.approx(2.8e4)
    assert llama_probe.show(rows) == missed

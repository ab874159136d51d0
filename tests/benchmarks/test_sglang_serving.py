"""The modes that are compared, their settings, and what is made of their results."""

import json
from pathlib import Path

import pytest

from benchmarks import sglang_serving
from benchmarks.sglang_serving import (
    OURS,
    PLAIN,
    SLOWER,
    WHOLE,
    is_slow,
    main,
    modes,
    reason_off,
    summary,
    was_on,
)

ANNOUNCED = "[time] evict-profile: on, table t.json\n"
TEXTS = {(0, 1): "a", (1, 1): "a"}


def result(seconds, said="a", steps=0):
    """A mode that decoded 100 tokens twice, at batch 1."""
    run = {"batch": 1, "tokens": 100, "steps": steps, "said": said}
    runs = [{**run, "repeat": n, "seconds": seconds * (1 + n)} for n in range(2)]
    return {"device": "GPU", "sglang": "0", "up_s": 1.0, "runs": runs}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (PLAIN, {}),
        (WHOLE, {}),
        (OURS, {"EVICT_PROFILE_TABLE": "t"}),
        ("width 8", {"EVICT_PROFILE_TABLE": "t", "EVICT_PROFILE_CAPTURE_SIZES": "8"}),
    ],
)
def test_the_plug_in_s_settings(name, expected):
    mode = next(mode for mode in modes([8]) if mode.name == name)
    assert mode.environment(Path("t")) == expected


def test_ratios_are_taken_repeat_by_repeat():
    results = {PLAIN: result(4.0), WHOLE: result(2.0), OURS: result(1.0)}
    ratios = summary(results, TEXTS)["ratios"]
    assert set(ratios) == {"whole tree / plain", "ours / plain", "ours / whole tree"}
    assert ratios["ours / plain"]["batch 1"] == {"median": 4, "low": 4, "high": 4}


@pytest.mark.parametrize(
    ("seconds", "slow"), [(1.0, False), (1.04, False), (1.1, True)]
)
def test_chosen_widths_that_lose_are_noticed(seconds, slow):
    results = {PLAIN: result(2.0), WHOLE: result(1.0), OURS: result(seconds)}
    assert is_slow(summary(results, TEXTS)["ratios"]) is slow


@pytest.mark.parametrize("said", ["a", "b"])
def test_other_tokens_are_noticed(said):
    found = summary({PLAIN: result(1.0), OURS: result(1.0, said)}, TEXTS)
    assert found["said_text"] == (said == "a")


def test_a_plug_in_that_went_off_is_noticed():
    off = "evict-profile: off, whole trees are verified: too many requests"
    assert was_on(ANNOUNCED) and not was_on("") and not was_on(ANNOUNCED + off)
    assert reason_off(off) == "off, whole trees are verified: too many requests"


def test_results_in_the_folder_are_not_made_again(
    informed_table, monkeypatch, tmp_path
):
    ran: list[str] = []

    def run_apart(words, environment, log, limit_s):
        ran.append(log.stem)
        drafts = json.loads(Path(words[-2]).read_text())["speculative"]
        Path(words[-1]).write_text(json.dumps(result(1.0, steps=50 * drafts)))
        log.write_text(ANNOUNCED if "EVICT_PROFILE_TABLE" in environment else "")

    monkeypatch.setattr(sglang_serving, "run_apart", run_apart)
    monkeypatch.setattr(sglang_serving, "texts", lambda *_: TEXTS)
    table = tmp_path / "t.json"
    informed_table.save(table)
    words = ["--model", "tiny-qwen3", "--sweep", "sglang-tiny", "--table", str(table)]
    words += ["--out", str(tmp_path), "--width", "4"]
    assert main([*words, "--minutes", "0"]) == 1 and not ran
    assert main(words) == 0
    assert main(words) == 0
    assert ran == ["plain", "whole-tree", "ours", "width-4", "plain-again"]
    (tmp_path / "ours.json").write_text(json.dumps(result(2.0)))
    assert main(words) == SLOWER
    found = json.loads((tmp_path / "serving.json").read_text())
    assert found["modes"]["width 4"]["batch 1"]["tokens_per_step"] == 2.0
    assert found["modes"]["plain"]["batch 1"]["tokens_per_s"]["high"] == 100.0

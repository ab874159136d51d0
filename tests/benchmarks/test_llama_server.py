"""What llama-server is predicted to take, and how it is compared with its clock."""

import numpy as np
import pytest

from benchmarks.llama_server import Setting, compared, settings


def test_a_prediction_is_tokens_over_the_price_of_the_step() -> None:
    """Half as many accepted as are not, then as many; the draft also reads them all."""
    plain = Setting("target")
    rated, own = Setting("target", "draft", 2, 0.5), Setting("target", "draft", 2)
    turn = {"tokens": 60, "accepted": 20}
    found = {
        plain: [{**turn, "us": 100.0}] * 3,
        rated: [{**turn, "accepted": 30, "us": 80.0}] * 3,
        own: [{**turn, "us": 125.0}] * 3,
    }
    target = {1: np.full(6, 200.0), 3: np.full(6, 240.0)}
    own_draft = {1: np.full(6, 15.0), 3: np.full(6, 30.0)}
    first, second = compared(found, target, own_draft)
    assert first["predicted"] == pytest.approx(2.0 * 200.0 / (240.0 + 2 * 15.0 + 30.0))
    assert first["measured"] == pytest.approx(1.25)
    assert second["predicted"] == pytest.approx(1.5 * 200.0 / 300.0)
    assert second["measured"] == pytest.approx(0.8)
    assert second["error"] == pytest.approx(1.0 / 0.8 - 1.0)


def test_there_are_more_than_ten_settings_beside_plain_decoding() -> None:
    """Each once, and named apart."""
    asked = settings("target", "draft")
    names = {setting.name for setting in asked}
    assert len(names) == len(asked) >= 12

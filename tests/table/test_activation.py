"""Activation curves: refused where they cannot be, capped where a budget caps."""

import pytest

from evict_profile.table import ActivationCurve, BatchActivation


def test_an_activation_curve_cannot_fall():
    """Batches are distinct; a budget caps every curve."""
    with pytest.raises(ValueError, match="union falls"):
        ActivationCurve("code", False, (0.0, 4.0, 3.0))
    with pytest.raises(ValueError, match="twice"):
        ActivationCurve("c", False, (0.0, 4.0), (BatchActivation(1, (0.0, 4.0)),) * 2)
    curve = ActivationCurve("c", False, (0.0, 4.0, 9.0), (BatchActivation(2, (7.0,)),))
    capped = curve.capped(5)
    assert capped.union == (0.0, 4.0, 5.0)
    assert capped.by_batch[0].union == (5.0,)

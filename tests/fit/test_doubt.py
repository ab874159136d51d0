"""Doubt is small where cells are measured, and large far from them."""

from evict_profile.cells import Cell
from evict_profile.fit.doubt import fit_surrogate
from evict_profile.fit.fitted import Fitted


def test_doubt_is_larger_outside_the_measured_range(fitted: Fitted) -> None:
    """A cell beyond all measured unions is less sure than a measured one."""
    small = {
        cell: values
        for cell, values in fitted.latencies.items()
        if cell.part == "ends" or 0 < cell.union <= 11
    }
    near = Cell("layers", 8, 7, 64, 1, "balanced")
    far = Cell("layers", 16, 32, 256, 2, "balanced")
    doubt = fit_surrogate(fitted.header.model, 2)(small, [near, far])
    assert doubt.relative_std[far] > doubt.relative_std[near]
    assert doubt.held_out.median < 0.05

"""Held-out errors: the hinge fit's is small, and the union axis is what makes it so."""

import numpy as np

from evict_profile.fit.baselines import FITTERS, held_out


def test_hinges_beat_tokens_only_where_the_union_matters(fitted):
    """Tokens alone cannot tell U=4 from U=32 at one width."""
    errors = {name: held.error.median for name, held in fitted.held_out.items()}
    assert set(errors) == {"hinge", *FITTERS}
    assert errors["hinge"] < 0.02
    assert errors["tokens only"] > 5 * errors["hinge"]


def test_a_cell_is_predicted_by_a_fit_that_did_not_see_it(fitted):
    """A fitter that only remembers what it saw knows none of the held-out cells."""
    seen_when_tested = []

    def remember(model, points):
        def predict(cells):
            seen_when_tested.extend(cells.index.isin(points.index))
            return np.ones(len(cells))

        return predict

    points = fitted.layer_points
    held_out(remember, fitted.model, points, seed=0)
    assert len(seen_when_tested) == len(points)
    assert not any(seen_when_tested)


def test_naturally_routed_cells_are_covered_at_their_union(fitted):
    """The cost at the observed union is the measured latency."""
    assert fitted.natural.error.median < 0.03

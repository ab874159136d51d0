"""Runs with a known cost beside their tables."""

import pytest
from markupsafe import Markup

from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import fit_run
from evict_profile.report import figures_cost, figures_step
from evict_profile.report.data import View
from tests.factories import write_run


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without drawings, which take two seconds, for tests of their words."""
    drawings = {
        figures_cost: ("surface", "widths", "residuals", "drift"),
        figures_step: ("step_latency", "break_even"),
    }
    for module, names in drawings.items():
        for name in names:
            monkeypatch.setattr(module, name, lambda given: Markup(""))


@pytest.fixture(scope="session")
def view(fitted):
    return View(fitted, make_table(fitted, samples_sha256="0" * 64))


@pytest.fixture(scope="session")
def rich_view(tmp_path_factory):
    run = fit_run(write_run(tmp_path_factory.mktemp("rich"), rich=True))
    return View(run, make_table(run, samples_sha256="0" * 64))

"""Decisions are tested with the compiled loops, and with those in numpy."""

from importlib import import_module

import pytest

from evict_profile.runtime import decision


@pytest.fixture(scope="module", params=["_scan", "scan_numpy"])
def loops(request):
    if request.param == "_scan" and not decision.COMPILED:
        pytest.skip("not compiled: no C compiler was at hand at install")
    with pytest.MonkeyPatch.context() as patch:
        own = import_module(f"evict_profile.runtime.{request.param}")
        patch.setattr(decision, "kernels", own)
        yield

"""Options are read and overridden in the context, or in the arguments before it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from evict_profile.integrations.sglang.options import option, overridden
from tests.integrations.sglang.server import Context


class OldArguments:
    """`ServerArgs` of 0.5.16, which holds the resolved options itself."""

    def __init__(self) -> None:
        self.tp_size, self.page_size = 1, 1

    def override(self, source: str, **values: Any) -> None:
        """Change some."""
        vars(self).update(values)


@pytest.fixture(params=["context", "arguments"])
def arguments(
    request: pytest.FixtureRequest, sglang: Context, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Server arguments of both kinds of version."""
    if request.param == "context":
        sglang.options["page_size"] = 1
        return SimpleNamespace(tp_size="asked for, not resolved")
    module = sys.modules["sglang.srt.runtime_context"]
    monkeypatch.setattr(module, "get_context", SimpleNamespace)
    return OldArguments()


def test_options_are_the_resolved_ones(arguments: Any) -> None:
    """Not what was asked for."""
    assert option(arguments, "tp_size") == 1


def test_overrides_last_as_long_as_the_block(arguments: Any) -> None:
    """Several at once."""
    with overridden(arguments, tp_size=2, page_size=8):
        assert option(arguments, "tp_size") == 2
        assert option(arguments, "page_size") == 8
    assert (option(arguments, "tp_size"), option(arguments, "page_size")) == (1, 1)


def test_overrides_end_when_the_block_raises(arguments: Any) -> None:
    """The server runs on."""
    with pytest.raises(KeyError), overridden(arguments, tp_size=2):
        raise KeyError
    assert option(arguments, "tp_size") == 1

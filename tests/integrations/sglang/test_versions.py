"""Only versions that were read and tried are accepted."""

from importlib import metadata

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.versions import ON_CPU, SUPPORTED, installed


@pytest.mark.parametrize("version", SUPPORTED)
def test_known_versions_are_accepted(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And said."""
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert installed() == version


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.24", "0.5.20.post1"])
def test_other_versions_are_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those that can be installed."""
    monkeypatch.setattr(metadata, "version", lambda name: version)
    named = r"0\.5\.16, 0\.5\.20, 0\.5\.21, 0\.5\.22, 0\.5\.23$"
    with pytest.raises(ConfigError, match=f"SGLang {version} is not .* one of {named}"):
        installed()


def test_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to install it."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(
        ConfigError, match=r"not installed here; pip install .*\[sglang"
    ):
        installed()


def test_what_runs_on_a_cpu_is_supported() -> None:
    """The tests' engines are users' engines."""
    assert set(ON_CPU) < set(SUPPORTED)

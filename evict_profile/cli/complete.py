"""Values that a shell completes: names of files in `configs/`, and known words."""

from collections.abc import Callable, Iterable


def known(*words: str) -> Callable[[str], list[str]]:
    return lambda incomplete: _beginning(incomplete, words)


def shipped(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        from evict_profile.io import data_root

        folder = data_root() / "configs" / kind
        return _beginning(
            incomplete, sorted(path.stem for path in folder.glob("*.yaml"))
        )

    return complete


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]

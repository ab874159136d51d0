"""SGLang's resolved options, read and overridden alike in all supported versions.

Since 0.5.18 the resolved configuration lives in a runtime context, and `ServerArgs` is
only the record of what was asked; 0.5.16 keeps both in `ServerArgs`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SOURCE = "evict_profile"


def option(server_args: Any, name: str) -> Any:
    """A resolved option by its flat name, such as "tp_size"."""
    context = _context()
    return context.config_leaf(name) if context else getattr(server_args, name)


@contextmanager
def overridden(server_args: Any, **values: Any) -> Iterator[None]:
    """Change resolved options, and put them back."""
    before = {name: option(server_args, name) for name in values}
    override = (_context() or server_args).override
    override(SOURCE, **values)
    try:
        yield
    finally:
        override(SOURCE, **before)


def _context() -> Any:
    """The runtime context, where this version keeps its configuration there."""
    from sglang.srt import runtime_context

    context = runtime_context.get_context()
    return context if hasattr(context, "config_leaf") else None

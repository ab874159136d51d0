"""Lines on a terminal, printed as they are: no markup, no colours, no folding."""

from rich.console import Console


def say(console: Console, line: str) -> None:
    """Print one line."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)

"""The command that composes cost tables from public measurements."""

from pathlib import Path

from typer import Option

from evict_profile.cli.options import console


def compose(
    list_them: bool = Option(False, "--list", help="Say what can be composed."),
    model: str | None = Option(None, help="Model name, its YAML, or a HF config.json."),
    gpu: str | None = Option(None, help="Such as h200; see --list."),
    engine: str | None = Option(None, help="sglang, vllm or trtllm."),
    source: Path | None = Option(
        None, "--from", help="Wheel or unpacked folder; else what pip installed."
    ),
) -> None:
    """Compose a cost table of a real GPU from public measurements of its parts."""
    from evict_profile.config import load_model
    from evict_profile.report.public import show_offers, show_pairs
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.offers import offers, pairs

    spec, rows = load_model(model) if model else None, open_source(source)
    if spec:
        show_pairs(console, pairs(rows, gpu, engine, spec))
    else:
        show_offers(console, offers(rows, gpu, engine))

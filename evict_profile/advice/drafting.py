"""What drafts, and the time of drafting that a user gives."""

from functools import cache
from pathlib import Path
from typing import Any

from evict_profile.config.attention import attention_mapping
from evict_profile.config.families import Config, Family
from evict_profile.config.model import AttentionSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, named_file
from evict_profile.records import parse, read_mapping, replace
from evict_profile.table import COMPOSED, DATASHEET, CostTable, DraftClock, Drafting
from evict_profile.table.overheads import Drafter

MAX_LEVEL_MS = 1_000.0


@cache
def drafters() -> dict[str, Any]:
    """By kind: its name in each engine, and who may change its length by batch."""
    return read_mapping(data_root() / "configs" / "draft_methods.yaml")


def drafter_of(asked: str | None, table: CostTable, is_timed: bool) -> Drafter:
    """The drafter of "KIND" or "KIND:CONFIG"; None is the model's own.

    Args:
        is_timed: whether the time of one of its forwards is given.
    """
    if asked is None:
        return Drafter.of(table.model)
    kind, _, config = asked.partition(":")
    ran = table.overheads and table.overheads.batches
    has_time = bool(is_timed or table.drafting or ran)
    is_own = kind == "eagle3" or (kind == "mtp" and table.model.mtp_layers > 0)
    estimated = table.origin in (COMPOSED, DATASHEET)
    if kind not in drafters():
        reason = f"choose one of {', '.join(drafters())}"
    elif config and (has_time or is_own or not estimated):
        reason = (
            f"no time is computed from its sizes here; give {kind} alone, and where "
            "none is known the time of a forward with --draft-level-ms"
        )
    elif not (config or has_time or is_own):
        reason = (
            f"{table.model.name} has none of its own; give its config.json as "
            f"{kind}:FILE, or the time of a forward with --draft-level-ms"
        )
    else:
        apart = ":FILE" * (kind == "mtp" and not is_own)
        return Drafter(kind + apart, *(_sizes(config) if config else ()))
    raise ConfigError(f"--drafter {asked}: {reason}")


def _sizes(name: str) -> tuple[int, int]:
    """Layers, and weights that a forward reads, of a dense model by name or file."""
    is_file = Path(name).is_file()
    path = named_file("drafters", name if is_file else Path(name).name.lower())
    whole = Config(read_mapping(path), path)
    config = Config(whole.content | whole.section("text_config").content, path)
    if config.get("experts"):
        raise config.error("has experts; give the config.json of a dense drafter")
    attention = parse(AttentionSpec, attention_mapping(config, Family())[0], str(path))
    mlp = 3 * config.hidden * config.count("dense_width")
    layers_weights = config.layers * (attention.weights(config.hidden) + mlp)
    return config.layers, layers_weights + config.count("vocab_size") * config.hidden


def drafting_of_level(table: CostTable, level_ms: float, drafter: Drafter) -> Drafting:
    """The time of a forward as given, beside what the table has of the rest."""
    if not 0.0 <= level_ms <= MAX_LEVEL_MS:
        raise ConfigError(
            f"--draft-level-ms {level_ms:g} is no time of one level; give "
            f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
        )
    rest = [DraftClock(batch, (0.0,), 0.0, 0.0) for batch in table.axes.batch]
    levels = tuple((1e3 * level_ms * drafter.forwards).tolist())
    known = table.drafting.batches if table.drafting else rest
    clocks = tuple(replace(clock, draft_us=levels) for clock in known)
    said = f"given, {level_ms:g} ms a forward at every batch"
    return Drafting(said, table.key.engine, clocks)

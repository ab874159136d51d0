"""A cost table of whole steps of a server, whose union is unknown.

At a batch B, a step that verifies n = 1 + K tokens a request takes S(n). The line
through the drafting settings, extrapolated to n = 1, exceeds the plain step S(1) by the
fixed time of drafting, which becomes the table's drafting. Costs between probed n are
linear; beyond the widest nothing is known.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from evict_profile import __version__
from evict_profile.calibrate.probed import PUBLISHED, ProbedSetting, check_servers
from evict_profile.config import ModelSpec, load_model
from evict_profile.config.load import known_models, model_named
from evict_profile.config.model import AttentionSpec, MoeSpec
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.fit.export import FIRST_VERSION, save_next
from evict_profile.records import to_mapping
from evict_profile.served.probe.server import ServerInfo
from evict_profile.stats import ErrorSummary, summarise_errors
from evict_profile.table import (
    SERVED,
    ActivationCurve,
    Axes,
    CostTable,
    DraftClock,
    Drafting,
    Fit,
    Gate,
    Key,
    ServedSteps,
    Staircase,
    TermCost,
)

INTERPOLATION_SD = 0.04
"""Error of interpolation between probed steps, in logs."""

MOST_NOISE = 0.1
"""Relative half-width of a setting's interval, above which no table is made."""

NOTES = (
    "settings were measured one after another, so a change of machine speed would look "
    "like an effect of K",
    "steps between probed K lie on a straight line",
)
OF_OTHERS = (
    "its runs are numbers as published, and each is taken as known to 10 %",
    "steps between published K lie on a straight line",
)


class Steps:
    def __init__(self, batch: int, settings: Sequence[ProbedSetting]) -> None:
        own = sorted((s for s in settings if s.batch == batch), key=lambda s: s.drafts)
        width = np.array([s.drafts + 1 for s in own])
        if width[0] > 1 or len(own) < 2 or not np.all(np.diff(width)):
            had = (f"{s.speculation} ({s.texts}, {s.server.url})" for s in own)
            raise ConfigError(
                f"batch {batch} needs a plain server (K = 0) and one or more that "
                "draft, each with another K, and all with chat or all with --raw; the "
                f"file has {', '.join(had)}"
            )
        us = np.array([s.step_us.value for s in own])
        self.batch, self.width, self.drafting_us = batch, width, 0.0
        if len(own) > 2:
            slope, start = np.polyfit(width[1:], us[1:], 1)
            self.drafting_us = float(max(slope + start - us[0], 0.0))
        self.us = np.maximum.accumulate(us - self.drafting_us * (width > 1))
        self.half_width = np.log([s.step_us.high / s.step_us.value for s in own])

    @property
    def tokens(self) -> int:
        return int(self.batch * self.width[-1])

    def staircase(self, context: int) -> Staircase:
        width = np.maximum(np.arange(self.tokens + 1) / self.batch, 1.0)
        us = np.interp(width, self.width, self.us)
        probed = np.interp(width, self.width, self.half_width)
        between = np.where(np.isin(width, self.width), 0.0, INTERPOLATION_SD)
        half_width = np.hypot(probed, between)
        shift = np.outer((0.0, -1.0, 1.0), half_width)
        cost, low, high = (tuple(each) for each in (us * np.exp(shift)).tolist())
        whole = ("verify", "draft", "fixed")
        return Staircase(self.batch, context, cost, low, high, whole)


def served_table(
    settings: Sequence[ProbedSetting], gpu: str, model: ModelSpec
) -> CostTable:
    check_servers(settings, model.name)
    batches = tuple(sorted({s.batch for s in settings}))
    steps, noise = [Steps(batch, settings) for batch in batches], _noise(settings)
    context = round(float(np.mean([r.context for s in settings for r in s.runs])))
    most, experts = max(each.tokens for each in steps), model.moe.num_experts
    unions = (model.uniform_union(float(t)) for t in range(most + 1))
    widths = tuple(sorted({int(n) for each in steps for n in each.width}))
    key = _key(settings[0].server, gpu, model)
    terms, error = _fit(steps)
    domain = {
        "width": (1, widths[-1]), "union": (model.moe.top_k, experts),
        "context": (context, context), "batch": (batches[0], batches[-1]),
        "tokens": (1, most),
    }  # fmt: skip
    clocks = (DraftClock(s.batch, (0.0, 0.0), s.drafting_us, 0.0) for s in steps)
    return CostTable(
        key=key,
        version=FIRST_VERSION,
        model=model,
        axes=Axes(widths, (experts,), (context,), batches, most, ()),
        fit=Fit(model.num_layers, 1.0, (), terms, {"hinge": error}, None, domain),
        staircases=tuple(each.staircase(context) for each in steps),
        activation=ActivationCurve("not known: whole steps", True, tuple(unions)),
        gates=(Gate("noise", True, f"each setting is known to {max(noise):.1%}"),),
        provenance=ServedSteps(
            fingerprint=to_mapping(key),
            samples_sha256="",
            samples=sum(len(s.runs) for s in settings),
            cells=len(settings),
            evict_profile=__version__,
            servers=tuple(to_mapping(s.server) for s in settings),
            half_width=float(np.median(noise)),
            notes=OF_OTHERS if settings[0].texts == PUBLISHED else NOTES,
        ),
        drafting=Drafting("within whole steps", key.engine, tuple(clocks)),
    )


def export_served(
    table: CostTable, settings: Sequence[ProbedSetting], tables: Path
) -> Path:
    """Write the table and its runs into a tree of tables; returns the path."""
    runs = pd.DataFrame([vars(run) for setting in settings for run in setting.runs])
    home = (tables / table.relative_path).parent
    return save_next(table, home, lambda path: runs.to_parquet(path, index=False))[1]


def shape_of(name: str) -> ModelSpec:
    """The shape of a model, or of none: whole steps need its name alone."""
    known = model_named(name, [path.stem for path in known_models()])
    if known or Path(name).expanduser().is_file():
        return load_model(name)
    notes = (f"no shape of a model '{name}' is known, and the name is a label",)
    attention, moe = AttentionSpec(1, 1, 1), MoeSpec(1, 1, 1)
    return ModelSpec(name, "a label", 1, 1, 1, attention, moe, notes=notes)


def _noise(settings: Sequence[ProbedSetting]) -> list[float]:
    noise = [float(np.log(s.step_us.high / s.step_us.value)) for s in settings]
    worst = settings[int(np.argmax(noise))]
    if max(noise) > MOST_NOISE:
        error = f"{max(noise):.0%}" if len(worst.runs) > 1 else "an unknown error"
        raise MeasurementError(
            f"not exported: {len(worst.runs)} runs of {worst.speculation} at "
            f"batch {worst.batch} show its step to {error}, and {MOST_NOISE:.0%} is "
            "needed; probe longer, and nothing else beside it"
        )
    return noise


def _key(server: ServerInfo, gpu: str, model: ModelSpec) -> Key:
    def stated(*names: str) -> str:
        return next((str(f) for n in names if (f := server.flags.get(n))), "not stated")

    return Key(
        gpu=gpu,
        model=model.name,
        dtype=stated("quantization", "dtype"),
        tp=server.flags.get("tp_size", 1),
        ep=server.flags.get("ep_size", 1),
        engine=server.engine,
        engine_version=server.version or "not stated",
        attention_backend=stated("attention_backend"),
        moe_backend=stated("moe_runner_backend"),
        graph_mode=SERVED,
    )


def _fit(steps: Sequence[Steps]) -> tuple[tuple[TermCost, ...], ErrorSummary]:
    """The fit over batches, and its errors at the probed ones."""
    batch = np.concatenate([np.full(len(s.us), float(s.batch)) for s in steps])
    tokens = batch * np.concatenate([s.width for s in steps])
    us = np.concatenate([s.us for s in steps])
    values = np.stack([np.ones_like(batch), batch, tokens], axis=1)
    found = nnls(values / us[:, None], np.ones_like(us))[0]
    named = zip(("one", "batch", "tokens"), found.tolist(), strict=True)
    terms = (TermCost(name, 0.0, None, us_per_unit) for name, us_per_unit in named)
    return tuple(terms), summarise_errors(values @ found, us)

from functools import partial
from pathlib import Path

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.io import say

BY_NAME = {"model", "gpu", "engine", "tp", "dtype", "source"}
"""Options that name a table."""


def advise(
    ctx: Context,
    table: Path | None = Argument(
        None,
        callback=options.valid_table,
        help="Cost table or served table (.json). Without it --model, --gpu and "
        "--engine select one, and without a table public servers answer.",
    ),
    model: options.ModelName = None,
    gpu: options.GpuName = None,
    engine: options.EngineName = None,
    tp: int | None = Option(None, min=1, help="Tensor-parallel size."),
    dtype: str | None = Option(
        None, help="Type of the expert weights: bf16, fp8, fp8_block ..."
    ),
    source: options.Source = None,
    accept: list[str] | None = Option(None, help=options.ACCEPT_HELP),
    batch: list[str] | None = Option(
        None,
        help="Batch sizes of which to show every draft length, as 1,8; repeatable.",
        show_default="the best of each of the table's",
    ),
    traffic: options.Traffic = None,
    context: options.ContextTokens = None,
    draft_level_ms: options.DraftLevelMs = None,
    drafter: options.DrafterKind = None,
    captured: options.Captured = None,
    outside: options.Outside = "refuse",
    as_json: options.AsJson = False,
) -> None:
    """Recommend how many tokens to draft, from acceptance."""
    accepted = options.one_acceptance(accept)
    if table:
        reject_unused(ctx, BY_NAME, "with a table's file")
    from evict_profile.advice.acceptance import acceptance_of
    from evict_profile.advice.decide import decide
    from evict_profile.advice.lookup import Known, Names, look_up
    from evict_profile.advice.plan import traffic_of
    from evict_profile.config.load import model_label
    from evict_profile.report.advice import Advice
    from evict_profile.report.pays import unaccepted
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable

    batches = options.batches_of(batch or [])
    names = Names(model, gpu, engine, tp, dtype, source)
    if table:
        known, preface = Known(load_any(table)), ""
    else:
        # Mistakes are found before a table is estimated.
        if accepted is not None:
            acceptance_of(accepted)
        traffic_of(traffic or "1:1")
        known = look_up(names, partial(say, stderr))
        preface = known.preface(names)
    if accepted is None and not isinstance(known.table, ServedTable):
        reject_unused(
            ctx, {*ctx.params} - BY_NAME - {"table", "as_json"}, "without --accept"
        )
        say(console, unaccepted(known.table, known.reason, preface, as_json))
        return
    decision = decide(
        known.table,
        accepted,
        batch=batches,
        traffic=traffic,
        context=context,
        draft_level_ms=draft_level_ms,
        drafter=drafter,
        captured=options.batches_of(captured or [], "--captured"),
        outside=outside,
    )
    given = model_label(model) if model else "MODEL", gpu or "GPU"
    advice = Advice(decision, preface, known.reason, given)
    say(console, advice.json() if as_json else str(advice))

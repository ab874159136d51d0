"""Runs of known steps."""

from evict_profile.served.run import Deployment, Load, Run
from evict_profile.table.store import save_next

SERVER = Deployment(model="m", gpu="H200", engine="vllm", version="1", tp=1)


def saved(table, tables):
    """The file of a table's next version in a tree of tables."""
    return save_next(table, table.home_in(tables))[1]


def run(batch=1, drafts=0, step_ms=10.0, **facts):
    """One run of a chain; `length` is its accepted length."""
    length = facts.pop("length", None)
    own = {
        "source": f"runs.csv, batch {batch}, K = {drafts}, {step_ms} ms",
        "levels": drafts,
        "topk": 1,
        "width": drafts + 1,
        "step_us": step_ms and 1e3 * step_ms,
        "accept_lengths": {drafts: length} if length else {},
    }
    return Run(batch=batch, drafts=drafts, **own | facts)


def rows(text, **facts):
    """Runs of "batch,K,step ms" by "|"."""
    found = []
    for row in text.split("|"):
        batch, drafts, step_ms = row.split(",")
        found.append(run(int(batch), int(drafts), float(step_ms), **facts))
    return found


def clean(drafts=3, step_ms=20.0, times=3, **facts):
    """Runs of which nothing can be said: plain and one K, all stated."""
    load = Load(
        temperature=0.0, requests=100, at_once=1.0, waiting=0, kv_usage=0.1,
        prefill=0.01, graphs="",
    )  # fmt: skip
    about = {"context": 1000.0, "text": "code", "deployment": SERVER, "load": load}
    plain = [run(**about)] * times
    return (
        plain + [run(1, drafts, step_ms, **{"length": 2.8, **about, **facts})] * times
    )

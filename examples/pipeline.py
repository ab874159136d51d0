"""From a model to a cost table, and from the table to decisions.

    python examples/pipeline.py [MODEL [PLAN [FOLDER]]]

The default measures a tiny model on this machine's CPU, in one to four minutes.
"""

import sys
from pathlib import Path

import torch

import evict_profile as ep


def main(model="tiny", plan="tiny", folder="runs/pipeline"):
    store = ep.Store(Path(folder) / "run")
    ep.run_sweep(ep.load_sweep(plan), ep.load_model(model), store)  # it can resume
    _, path = ep.export_table(ep.fit_run(store), Path(folder) / "tables")

    table = ep.CostTable.load(path)
    truncator = ep.Truncator(table, drafts="topk", acceptance="target-only")
    path_prob = torch.tensor([[0.9, 0.8, 0.5, 0.1]])  # of the drafts of one request
    decision = truncator.plan(path_prob, context=table.axes.context[0])
    print(f"verify {decision.widths[0]} tokens, drafts {decision.keep.tolist()[0]}")
    print(ep.advise(table, accept="0.75"))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""From samples to a cost: a cost model, how wrong it is, and whether it may ship."""

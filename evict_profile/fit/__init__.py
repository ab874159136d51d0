"""From samples to a price: a cost model, how wrong it is, and whether it may ship."""

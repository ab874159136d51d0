"""Expert budgets on trained weights: what they cost in quality, what they buy."""

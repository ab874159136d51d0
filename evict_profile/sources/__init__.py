"""Public measurements of real GPUs, turned into cells: one reader a source."""

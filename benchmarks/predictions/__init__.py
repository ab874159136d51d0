"""Predictions that are dated and hashed before their runs are posted."""

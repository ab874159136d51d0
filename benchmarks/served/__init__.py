"""Costs held against runs that others served: the record, and what it says."""

"""Sweeps of many models on many machines that see one folder."""

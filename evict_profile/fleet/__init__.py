"""Sweeps of many models on many machines, spread by Ray from one frozen plan.

`spec` is what a user asks, `plan` what is frozen of it, `folder` what comes back;
`task` runs on a node, `driver` decides, and `cluster` alone knows Ray.
"""

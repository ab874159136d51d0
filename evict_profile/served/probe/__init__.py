"""Measures whole steps of a running server, from outside, over its HTTP interface."""

"""Sweeps of machines whose true cost is known: does a table say how wrong it may be?"""

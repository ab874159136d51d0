"""Traces decoded under policies and timed by a cost table: does cutting trees pay?"""

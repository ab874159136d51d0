"""Traces decoded under policies and priced by a cost table: does cutting trees pay?"""

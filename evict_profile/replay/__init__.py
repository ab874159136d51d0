"""Traces walked under policies and priced by a cost table: does cutting trees pay?"""

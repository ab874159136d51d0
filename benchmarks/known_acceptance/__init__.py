"""Prompts whose acceptance is known: how sure may replay and calibration be?"""

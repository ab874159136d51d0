"""Replays and calibrations of prompts whose acceptance is known."""

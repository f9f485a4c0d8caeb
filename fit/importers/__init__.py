"""Runs of other tools (tools.py)."""

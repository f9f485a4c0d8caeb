"""Runs of other tools (tools.py), and those of a workdir of jmoe.train (workdir.py)."""

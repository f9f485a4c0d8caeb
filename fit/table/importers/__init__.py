"""Runs of other tools (tools.py, trackers.py), and those of a workdir of jmoe.train (workdir.py)."""

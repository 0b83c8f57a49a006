"""Profiles that other tools recorded, a file a rank -> Timeline.

Each format's reader gives ranges, operations and kernels on the clock of its own
process; what makes tiles of ranges, one time axis of many clocks and a program of
the tiles is the same for all.
"""

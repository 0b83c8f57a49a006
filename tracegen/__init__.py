"""Compile, replay, execute and trace pipeline-parallel training schedules."""

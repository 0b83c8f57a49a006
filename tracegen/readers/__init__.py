"""Files that hold a trace -> Timeline."""

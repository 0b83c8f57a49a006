"""What needs a screen: Perfetto (open, query) and pictures of a Timeline."""

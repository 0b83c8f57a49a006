"""What a person asks of schedules: which one, with which sizes, and why not faster."""

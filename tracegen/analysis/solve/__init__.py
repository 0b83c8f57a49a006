"""The best order of a pipeline's actions under a memory limit, and a proof of how good it is."""

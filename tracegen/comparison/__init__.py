"""Two timelines -> what is different, in the terms of the subject."""

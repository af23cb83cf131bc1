"""`grpo explore`: a first look at one's data before any training."""

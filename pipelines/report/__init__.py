"""`grpo report`: one HTML page of a run that opens from disk without a network, and prints."""

"""The record of every output: how it was made, from which code, and how a run is found again."""

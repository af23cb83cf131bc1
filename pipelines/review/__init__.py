"""`grpo review`: a page on this machine where people say which of two completions is better, without knowing who wrote which."""

"""Health: what each step shows is compared with rules that name a trouble, say what to do about it, and stop where that was asked for."""

"""What a completion earns: plain functions, called as the ecosystem calls them, isolated, checked, weighted and combined."""

"""The nouns of the lifecycle, a file each: how it is made (`produce`), what must hold of it (`contract`), how it looks (`describe`)."""

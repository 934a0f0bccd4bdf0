"""What a queue may have beside its core, a folder for each: the core imports none of them."""

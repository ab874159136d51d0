"""Rules that cut a draft tree, compared where the truth is known."""

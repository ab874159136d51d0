"""What draft trees of real text say: acceptance, union growth and drafting times."""

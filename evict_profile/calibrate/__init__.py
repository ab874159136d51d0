"""What draft trees of real text say: acceptance, activation and drafting times."""

"""The claims of papers, judged one by one on recordings."""

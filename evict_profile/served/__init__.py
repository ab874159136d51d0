"""What servers said: runs of any tool, and the step ratios that they support."""

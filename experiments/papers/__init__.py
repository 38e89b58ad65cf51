"""The papers' own configurations, run through this library: one file per paper, one runner, one page."""

"""The report: evaluation records next to the published results, as one page and as Markdown."""

"""The report: evaluation records and ablations next to the published results, as one page and as Markdown."""

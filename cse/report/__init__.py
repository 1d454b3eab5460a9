"""The report: records of evaluations and ablations beside the published figures, as one page and as Markdown."""

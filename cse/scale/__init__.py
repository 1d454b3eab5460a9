"""Work that is shared out to many processes and machines, with Ray: training workers, and encoders of a corpus."""

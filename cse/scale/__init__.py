"""Work that is shared out to many processes and machines: the only folder beside `cse.tune` that knows Ray."""

"""Many workers, many trials, many lines: the parts that run on Ray. Nothing below imports them."""

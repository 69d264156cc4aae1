"""Which worker gets which pods: batches, balancing, routing, work stealing, overlap control and the dry
run."""

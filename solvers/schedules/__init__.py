"""Who does what when: pipelines, flow lines, equal tasks on unequal machines, batches, periods."""

"""The life of a task in the process that runs it: how it is called, alone, in a batch, in a transaction, eagerly."""

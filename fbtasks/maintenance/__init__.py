"""What any worker does now and then for all of them: rescue, pruning, giving up on tasks that no worker knows."""

"""What changes the weights: tasks, groups, GRPO steps, versions, the gate and the pointer."""

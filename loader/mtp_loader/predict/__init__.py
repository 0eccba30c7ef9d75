"""What will be needed next: pure predictors, how well each has done, and whether prefetching on them pays."""

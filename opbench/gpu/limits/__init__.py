"""What a GPU can do at most: products, ceilings, occupancy, the least time of a launch."""

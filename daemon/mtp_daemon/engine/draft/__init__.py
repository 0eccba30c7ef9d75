"""Ways to draft, each by name behind one interface: chain, adaptive, rescue, tree, adaptive+rescue."""

"""Which resident expert to give up: pure policies behind one interface."""

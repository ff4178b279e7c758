"""One model over unequal nodes (Helix): which layers each node holds, and how requests flow over them."""

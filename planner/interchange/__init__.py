"""Files of other programs as problems, and plans back in their formats: recognised by content, in one place."""

"""The way in from Python: plans as objects, and the verbs of the command as functions of them."""

"""Plans, findings and lists as text that reads the same without colour."""

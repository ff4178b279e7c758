"""What serves: instances with their step times and rules, and how they are operated."""

"""What physics and published latencies allow of the parameters of training costs."""

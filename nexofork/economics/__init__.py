"""What forking costs: prices as data, the bill, its lower bound, and what to expect before anything is sent."""

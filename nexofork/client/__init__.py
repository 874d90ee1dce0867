"""The parent's side: starting forks and holding on to them."""

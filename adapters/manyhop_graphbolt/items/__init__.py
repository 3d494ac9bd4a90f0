"""Items, and minibatches of items."""

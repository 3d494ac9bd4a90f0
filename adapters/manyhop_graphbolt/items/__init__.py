"""What is iterated, and the minibatches of it."""

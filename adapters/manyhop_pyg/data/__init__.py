"""The user's data and stores, as graphs and features of the engine."""

"""What the engine needs of the machine, of drivers and of compilers."""

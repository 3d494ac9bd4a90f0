"""Interfaces to the machine, its drivers and compilers."""

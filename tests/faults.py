"""What goes wrong in the training loop of a rank that a test has fail."""

import os
import signal


def fail_in_step(fault: str) -> bool:
    """Raise, or end the process; returns whether the loop is to be left. Other faults are not of the step."""
    if fault == "raise":
        raise KeyError("my step is broken")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return fault == "break"

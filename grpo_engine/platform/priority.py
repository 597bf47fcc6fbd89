"""Priorities of threads: drawing before the engine, both before exports and estimates."""

import os
import sys
import threading
from typing import Literal

# Apple's USER_INTERACTIVE, USER_INITIATED, and UTILITY, which may mean efficiency cores
QOS = {"drawing": 0x21, "engine": 0x19, "utility": 0x11}


def set_priority(role: Literal["drawing", "engine", "utility"], niceness: int = 0) -> bool:
    """Set the calling thread's priority by its role; False if the system refuses.

    macOS has classes of quality of service. On Linux the thread gets the process's nice value and
    `niceness`, and so do the threads that it starts.
    """
    try:
        if sys.platform == "darwin":
            import ctypes

            system = ctypes.CDLL(None)
            return bool(system.pthread_set_qos_class_self_np(QOS[role], 0) == 0)
        thread = threading.get_native_id()
        target = min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + niceness)
        if os.getpriority(os.PRIO_PROCESS, thread) < target:
            os.setpriority(os.PRIO_PROCESS, thread, target)
    except (OSError, AttributeError):
        return False
    return True

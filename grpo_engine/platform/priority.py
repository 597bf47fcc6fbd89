"""Lowers the priority of the engine's thread below the UI thread's."""

import ctypes
import os
import sys
import threading

QOS_CLASS_UTILITY = 0x11


def lower_priority(niceness: int = 5) -> bool:
    """Lower the calling thread's priority; threads that it starts inherit it.

    A niceness of 0 changes nothing. Linux has a nice value per thread, macOS a quality-of-service
    class. False if the system refuses.
    """
    if niceness <= 0:
        return True
    try:
        if sys.platform == "darwin":
            system = ctypes.CDLL(None)
            return bool(system.pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0) == 0)
        thread = threading.get_native_id()
        target = min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + niceness)
        if os.getpriority(os.PRIO_PROCESS, thread) < target:
            os.setpriority(os.PRIO_PROCESS, thread, target)
    except (OSError, AttributeError):
        return False
    return True

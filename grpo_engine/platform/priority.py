"""Lets the engine's thread yield to the one that draws."""

import ctypes
import os
import sys
import threading

QOS_CLASS_UTILITY = 0x11


def lower_priority(niceness: int = 5) -> bool:
    """Lower the calling thread's priority; threads that it starts inherit it. False: refused.

    Nothing changes for a niceness of 0. Linux keeps a nice value per thread, macOS a
    quality-of-service class.
    """
    if niceness <= 0:
        return True
    try:
        if sys.platform == "darwin":
            system = ctypes.CDLL(None)
            return bool(system.pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0) == 0)
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
    except (OSError, AttributeError):
        return False
    return True

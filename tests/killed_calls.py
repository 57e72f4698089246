"""For scripts that die by SIGKILL before one of the calls that change the disk; not a module of tests."""

COUNTED = """
import os, signal
calls = 0
def counted(call, last):
    def counting(*given, **named):
        global calls
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return call(*given, **named)
    return counting
"""

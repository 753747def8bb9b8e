"""Runs a command as a restricted container would: contained.py COMMAND...

What the default seccomp profiles of container engines refuse to a container without capabilities, of the calls that RADIC makes when it can: namespaces and mounts,
clone3 (as if the kernel had none), userfaultfd, and personality but for what is harmless. Every capability goes, and no program brings any back.
"""

import ctypes
import errno
import os
import struct
import sys

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # Within struct seccomp_data.
X86_64 = 0xC000003E
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER, CAPBSET_DROP = 38, 22, 2, 24

CLONE, PERSONALITY = 56, 135
NAMESPACES = 0x7E020000  # All CLONE_NEW*.
REFUSED = {
    435: errno.ENOSYS,  # clone3: its flags lie in memory, where a filter cannot look.
    272: errno.EPERM,  # unshare
    308: errno.EPERM,  # setns
    165: errno.EPERM,  # mount
    166: errno.EPERM,  # umount2
    155: errno.EPERM,  # pivot_root
    323: errno.EPERM,  # userfaultfd
}
PERSONALITIES = [0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF]


def step(code, value, yes=0, no=0):
    return struct.pack("HBBI", code, yes, no, value)


def refusal(error):
    return step(RETURN, REFUSE | error)


def program():
    steps = [step(LOAD, ARCHITECTURE), step(EQUAL, X86_64, 1), refusal(errno.ENOSYS), step(LOAD, NUMBER)]
    for number, error in REFUSED.items():
        steps += [step(EQUAL, number, 0, 1), refusal(error)]
    steps += [step(EQUAL, CLONE, 0, 4), step(LOAD, ARGUMENT), step(ANY_BIT, NAMESPACES, 0, 1), refusal(errno.EPERM), step(RETURN, ALLOW)]
    steps += [step(EQUAL, PERSONALITY, 0, 2 + 2 * len(PERSONALITIES)), step(LOAD, ARGUMENT)]
    for value in PERSONALITIES:
        steps += [step(EQUAL, value, 0, 1), step(RETURN, ALLOW)]
    steps += [refusal(errno.EPERM), step(RETURN, ALLOW)]
    return steps


def contain():
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def call(*arguments):
        if prctl(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{arguments}")

    if os.geteuid() == 0:
        with open("/proc/sys/kernel/cap_last_cap") as last:
            for capability in range(int(last.read()) + 1):
                call(CAPBSET_DROP, capability, 0, 0, 0)
    call(SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    steps = program()
    code = ctypes.create_string_buffer(b"".join(steps))
    what = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    call(SET_SECCOMP, FILTER, ctypes.addressof(what), 0, 0)


contain()
os.execvp(sys.argv[1], sys.argv[1:])

"""The child side of `jobs.tasks.sandbox`: reads an order from stdin, limits itself, runs the program, reports.

Run only as a script by the parent, with the standard library alone. Reports the order's "ready" once the limits are in
place and its "token" once the program came to its end.
"""

import json
import os
import resource
import sys

REFUSED = {
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"),
    *("os.kill", "os.killpg", "signal.pthread_kill", "ctypes.dlopen", "ctypes.dlsym"),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def guard(event: str, args: tuple[object, ...]) -> None:
    """Audit hook: refuse what a pure function never needs."""
    writes = event == "open" and isinstance(args[2], int) and bool(args[2] & WRITING)
    if writes or event in REFUSED or event.startswith("socket."):
        raise PermissionError(f"{event} is not allowed here")


def cap(kind: int, value: int) -> None:
    """Lower one resource limit to `value`, or leave it where it already is lower."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit(seconds: float, mib: int) -> None:
    """Limit this process (and its children): CPU seconds, MiB of address space, no file bytes, no core, few files."""
    cap(resource.RLIMIT_CPU, int(seconds) + 1)
    if sys.platform == "linux":  # elsewhere the address space cannot be limited in a useful way
        cap(resource.RLIMIT_AS, mib << 20)
    cap(resource.RLIMIT_FSIZE, 0)
    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_NOFILE, 32)


def main() -> None:
    """Run the program as a silent `__main__` of its own and leave without waiting for its threads."""
    order = json.loads(sys.stdin.read())
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    limit(order["seconds"], order["mib"])
    os.write(report, order["ready"].encode())
    for stream in range(3):
        os.dup2(null, stream)
    code = compile(order["program"], "program", "exec")
    sys.addaudithook(guard)
    exec(code, {"__name__": "__main__"})
    os.write(report, order["token"].encode())
    os._exit(0)


if __name__ == "__main__":
    main()

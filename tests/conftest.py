"""What every test finds alike, wherever the suite runs."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# The same examples in every run, and none fails for the time it took.
settings.register_profile(
    "alike",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("alike")


def pytest_configure() -> None:
    """Neither the terminal, a proxy nor how the suite was started changes what a test sees."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
        os.environ.pop(name, None)
    os.environ["COLUMNS"] = "80"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1"
    # Under nohup and in the background signals are ignored, and in every child; a handler
    # is not passed on, so that these end by the signals that tests send them.
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", lambda *_: None)):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

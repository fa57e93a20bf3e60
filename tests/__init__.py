import os
import signal

# Read when torch is loaded. Beside other work, threads that wait awake make the tests up to 40 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# A script that began the tests in its background (`&`) has Ctrl-C ignored, also in what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

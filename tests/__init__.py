import os

# Read when torch is loaded. Beside other work, threads that wait awake make the tests up to 40 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

"""Runs the tests of one file without pytest: every `test_*` function that takes no argument is called.

Usage: calls.py FILE [NAME...]. Prints a line a test; exits with 1 if one failed, with 2 if there was none.
"""

import importlib.util
import inspect
import sys
import time
import traceback


def load(path):
    spec = importlib.util.spec_from_file_location("tests_of_the_guest", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(path, names):
    module = load(path)
    counts = {"passed": 0, "failed": 0, "not run": 0}
    for name, test in list(vars(module).items()):
        if not name.startswith("test_") or not callable(test) or (names and name not in names):
            continue
        start = time.monotonic()
        if inspect.signature(test).parameters:
            outcome = "not run"
        else:
            try:
                test()
                outcome = "passed"
            except Exception:
                traceback.print_exc()
                outcome = "failed"
        counts[outcome] += 1
        print(f"{outcome:8} {time.monotonic() - start:6.2f} s  {name}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), flush=True)
    return 1 if counts["failed"] else 0 if counts["passed"] else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

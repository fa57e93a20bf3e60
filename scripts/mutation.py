"""Changes the code in small ways, one at a time, and says which changes no test notices.

    pip install -e ".[dev,mutation]"
    python -m scripts.mutation --sample 20                     # of each file, 20 mutants
    python -m scripts.mutation imdb_transformer/store/files.py # all mutants of one file
    python -m scripts.mutation --sample 20 --again             # tries the survivors once more

It prints a table by file: mutants, killed, survived and score; then each survivor as a diff. Each result is a
line of `build/mutation/results.jsonl`, so a command that was interrupted goes on where it stopped.

The mutants are mutmut's: an operator, a number, an argument or a value is changed. Each runs in a copy of the
checkout, in a process forked after torch was imported. It runs the tests that execute the changed line, the
fastest first, until one fails. A test that takes ten times as long as usual counts as failed. A mutant that
passes survives; so does one that no test executes. Tests of whole commands as processes are left out. If a
test fails on the unchanged code, the command ends and names it.

The first run learns which test executes which line: 15 minutes on two cores. Then about 10 mutants end in a
minute. Survivors that change nothing are listed in scripts/mutation_survivors.md. Needs Linux.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

from scripts.mutants import Mutant, lines_in_functions, mutants_of

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "mutation"
TARGETS = (
    "model", "training", "data/holdout.py", "data/batches.py", "evaluation", "inference/linear.py",
    "store/files.py",
)  # fmt: skip
LEFT_OUT = {f"test_{name}.py" for name in ("browser", "cli", "distributed", "fuzz", "memory", "reliability")}
HEAVY = (
    "torch._dynamo", "torch.utils.flop_counter", "sklearn.metrics", "sklearn.linear_model", "datasets",
    "sklearn.feature_extraction.text", "scipy.stats", "scipy.optimize", "tokenizers", "pyarrow.parquet",
    "hypothesis", "typer.testing", "safetensors.torch", "pydantic", "yaml", "tomli_w",
)  # fmt: skip
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")} | {"GOMP_SPINCOUNT": "0"}
PYTEST = ("-p", "no:cacheprovider", "--hypothesis-seed=0", "-W", "ignore::pytest.PytestAssertRewriteWarning")


FEW = 12
PASSED = (0, 5)  # exit codes of pytest; 5: there was no test
Work = Callable[[Path], int]  # in a copy of the checkout; gives an exit code


class Plugin:
    """Of pytest, for tests that run beside others: one thread each."""

    def pytest_collection_finish(self) -> None:
        sys.modules["torch"].set_num_threads(1)


class Recorder(Plugin):
    """Notes which lines each passing test executes, and what it costs with its fixtures."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.costs: dict[str, float] = {}
        self.fixtures: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = cpu_seconds()
        yield
        self.fixtures[fixturedef.argname] = cpu_seconds() - before

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        before = cpu_seconds()
        outcome: Any = yield
        if outcome.excinfo is None:
            fixtures = sum(self.fixtures.get(name, 0) for name in getattr(item, "fixturenames", []))
            self.costs[item.nodeid] = round(cpu_seconds() - before + fixtures, 3)


class Runner(Plugin):
    """Some tests only, the fastest first, each with a time limit; tells which one failed."""

    def __init__(self, costs: dict[str, float], told: Path) -> None:
        self.costs, self.told = costs, told

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.costs]
        items[:] = sorted(chosen, key=lambda item: self.costs[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.told.write_text(item.nodeid)
        signal.alarm(300)  # nobody handles these signals: the process ends
        signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.costs[item.nodeid])


def cpu_seconds() -> float:
    """Of this process and those that it waited for; unlike wall time, the same on a busy machine."""
    return sum(os.times()[:4])


def forked(tree: Path, work: Work) -> int:
    """The id of a process that works in a copy of the checkout and ends with the code that `work` gives."""
    child = os.fork()
    if child:
        return child
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    code = 70
    try:
        code = work(tree)
    finally:
        os._exit(code)


def at_once(
    trees: list[Path], jobs: Iterable[tuple[Any, Callable[[Path], int]]]
) -> Iterator[tuple[Any, Path, int]]:
    """Does jobs (name, work), one in each tree at a time; yields name, tree and exit code as each ends."""
    free, running = list(trees), {}

    def ended() -> tuple[Any, Path, int]:
        process, status = os.wait()
        name, tree = running.pop(process)
        free.append(tree)
        return name, tree, os.waitstatus_to_exitcode(status)

    for name, work in jobs:
        if not free:
            yield ended()
        tree = free.pop()
        running[forked(tree, work)] = name, tree
    while running:
        yield ended()


def record(file: str, told: Path, tree: Path) -> int:
    """Writes what the tests of a file execute and cost."""
    coverage = Coverage(data_file=None, source=[str(tree / "imdb_transformer")], config_file=False)
    recorder = Recorder(coverage)
    coverage.start()
    pytest.main([file, *PYTEST, f"--basetemp={tree.parent / 'tmp'}"], plugins=[recorder])
    coverage.stop()
    data = coverage.get_data()
    lines = {
        str(Path(path).relative_to(tree)): {
            line: contexts for line, contexts in data.contexts_by_lineno(path).items() if any(contexts)
        }
        for path in data.measured_files()
    }
    told.write_text(json.dumps({"costs": recorder.costs, "failed": recorder.failed, "lines": lines}))
    return 0


def executed(trees: list[Path], patterns: list[str]) -> list[dict[str, Any]]:
    """By file of tests, their costs and the lines that they execute; until it or the package changes.

    Raises SystemExit if a test fails on the unchanged code: it would be left out, and mutants would survive.
    """
    package = sorted((ROOT / "imdb_transformer").rglob("*.py"))
    common = [*package, ROOT / "tests" / "conftest.py", ROOT / "tests" / "tiny.py"]
    matches = {path for pattern in patterns for path in (ROOT / "tests").glob(pattern)}
    tests = [path for path in sorted(matches) if path.name not in LEFT_OUT]
    answers = {}
    for path in [*tests, *(path for path in package if ">>> " in path.read_text())]:
        content = hashlib.sha256(b"".join(read.read_bytes() for read in [*common, path])).hexdigest()[:16]
        answers[str(path.relative_to(ROOT))] = BUILD / f"{path.stem}-{content}.json"
    jobs = [(file, partial(record, file, told)) for file, told in answers.items() if not told.exists()]
    for file, _, _ in at_once(trees, jobs):
        print(f"{file} was watched", file=sys.stderr, flush=True)
    unwatched = [file for file, told in answers.items() if not told.exists()]
    if unwatched:
        raise SystemExit(f"pytest ended before it could tell what these execute: {', '.join(unwatched)}")
    watched = [json.loads(told.read_bytes()) for told in answers.values()]
    failed = [test for part in watched for test in part["failed"]]
    if failed:
        for told, part in zip(answers.values(), watched, strict=True):
            if part["failed"]:
                told.unlink()  # it is watched again the next time
        raise SystemExit("these tests fail on the unchanged code:\n" + "\n".join(failed))
    return watched


def tests_of(
    mutants: list[Mutant], watched: list[dict[str, Any]], budget: float
) -> dict[str, dict[str, float]]:
    """The tests that execute each mutant's lines, with their costs.

    Lines outside of functions run at the first import, in whichever test that is: such a mutant gets all the
    tests that execute its file. As many as take no more than `budget` seconds, the fastest first.
    """
    costs = {test: cost for part in watched for test, cost in part["costs"].items()}
    by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
    by_file: dict[str, set[str]] = defaultdict(set)
    for part in watched:
        for path in {mutant.path for mutant in mutants} & part["lines"].keys():
            for line, tests in part["lines"][path].items():
                by_line[path, int(line)] |= costs.keys() & set(tests)
                by_file[path] |= by_line[path, int(line)]
    chosen = {}
    bodies = {path: lines_in_functions((ROOT / path).read_text()) for path in {m.path for m in mutants}}
    for mutant in mutants:
        lines = [by_line[mutant.path, line] for line in mutant.lines]
        is_in_function = mutant.lines[0] in bodies[mutant.path]
        tests = set().union(*lines) if is_in_function else by_file[mutant.path]
        cheapest = sorted(tests, key=costs.__getitem__)
        totals = accumulate(costs[test] for test in cheapest)
        chosen[mutant.key] = {
            test: costs[test] for test, total in zip(cheapest, totals, strict=True) if total <= budget
        }
    return chosen


def write(tree: Path, path: str, code: str) -> None:
    (tree / path).write_text(code)
    for compiled in (tree / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc"):
        compiled.unlink()  # of the same second, it would pass for new


def attempt(mutant: Mutant, costs: dict[str, float], tree: Path) -> int:
    """Runs the tests of a mutant, a few first: most need no more. Gives pytest's exit code."""
    write(tree, mutant.path, mutant.code)
    told, options = tree.parent / "told", (*PYTEST, "-x", f"--basetemp={tree.parent / 'tmp'}")
    told.write_text("")
    for tests in (list(costs)[:FEW], list(costs)[FEW:]):
        files = sorted({test.split("::")[0] for test in tests})
        runner = Runner({test: costs[test] for test in tests}, told)
        code = int(pytest.main([*files, *options], plugins=[runner])) if files else 0
        if code not in PASSED:
            return code
    return 0


def results_of(mutants: list[Mutant], trees: list[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Each mutant's result by key; what was tried before is not tried again."""
    log = BUILD / "results.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    results = {result["key"]: result for result in map(json.loads, lines)}
    waiting = [m for m in mutants if m.key not in results or (options.again and results[m.key]["survived"])]
    watched = executed(trees, options.tests) if waiting else []
    tests = tests_of(waiting, watched, options.budget)
    jobs = ((mutant, partial(attempt, mutant, tests[mutant.key])) for mutant in waiting)
    for number, (mutant, tree, code) in enumerate(at_once(trees, jobs), 1):
        write(tree, mutant.path, (ROOT / mutant.path).read_text())
        results[mutant.key] = result = {
            "key": mutant.key, "survived": code in PASSED, "exit": code, "num_tests": len(tests[mutant.key]),
            "test": (tree.parent / "told").read_text(), "diff": mutant.diff,
        }  # fmt: skip
        with log.open("a") as file:
            file.write(json.dumps(result) + "\n")
        said = "survived" if result["survived"] else f"killed by {result['test']}"
        print(f"{number} of {len(waiting)}: {mutant.key} {said}", file=sys.stderr, flush=True)
    return results


def show(mutants: list[Mutant], results: dict[str, Any]) -> None:
    """Prints the table and the survivors."""
    counts = Counter((mutant.path, results[mutant.key]["survived"]) for mutant in mutants)
    print("| file | mutants | killed | survived | score |\n|---|---|---|---|---|")
    for path in dict.fromkeys(mutant.path for mutant in mutants):
        killed, survived = counts[path, False], counts[path, True]
        total = killed + survived
        print(f"| {path} | {total} | {killed} | {survived} | {killed / total:.0%} |")
    for mutant in mutants:
        result = results[mutant.key]
        if result["survived"]:
            print(f"\n{mutant.key} ({result['num_tests']} tests)\n{mutant.diff}")


def copy_checkout(folder: Path) -> None:
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders; without any, those of the goal")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each file; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant")
    parser.add_argument("--tests", nargs="+", default=["test_*.py"], help="files of tests that may be used")
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    for module in HEAVY:
        importlib.import_module(module)
    # jemalloc, which pyarrow brings along, starts its thread anew in a forked process; others would be lost.
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, threads
    BUILD.mkdir(parents=True, exist_ok=True)
    targets = [Path(path).resolve() for path in options.paths]
    targets = targets or [ROOT / "imdb_transformer" / target for target in TARGETS]
    files = [
        file
        for target in targets
        for file in ([target] if target.is_file() else sorted(target.rglob("*.py")))
    ]
    mutants = [
        mutant for file in dict.fromkeys(files)
        for mutant in mutants_of(ROOT, str(file.relative_to(ROOT)), sample=options.sample, seed=options.seed)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / str(number) / "tree" for number in range(options.jobs)]
        for tree in trees:
            copy_checkout(tree)
        results = results_of(mutants, trees, options)
    show(mutants, results)


if __name__ == "__main__":
    main()

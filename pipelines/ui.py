"""`grpo ui`: the Dagster and MLflow servers side by side on loopback, started and stopped together."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.environment import environment
from pipelines.signals import die_with_parent
from pipelines.tracking import tracking_uri

HOST = "127.0.0.1"
START_SECONDS = 180.0
GRACE_SECONDS = 15.0
"""Between asking a server to end and insisting."""


class ServerError(RuntimeError):
    """A server that cannot be started or ended by itself."""


@dataclass(frozen=True, slots=True)
class Server:
    """A web server to run."""

    name: str
    port: int
    option: str
    """The option of `grpo ui` that chooses the port."""
    health: str
    """A path that answers 200 once the server is up."""
    command: tuple[str, ...]

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"


def servers(root: Path, port: int, mlflow_port: int) -> list[Server]:
    """Dagster's server, and MLflow's unless runs are kept on a server already (MLFLOW_TRACKING_URI)."""
    scripts = Path(sys.executable).parent
    dagster = (str(scripts / "dg"), "dev", "--host", HOST, "--port", str(port), "--use-active-venv")
    uri = tracking_uri(root)
    mlflow = (str(scripts / "mlflow"), "ui", "--host", HOST, "--port", str(mlflow_port), "--workers", "1", "--backend-store-uri", uri)
    found = [Server("Dagster", port, "--port", "/server_info", dagster)]
    return found if uri.startswith(("http://", "https://")) else [*found, Server("MLflow", mlflow_port, "--mlflow-port", "/health", mlflow)]


@contextmanager
def running(root: Path, wanted: Sequence[Server]) -> Iterator[dict[Server, subprocess.Popen[bytes]]]:
    """The servers, answering; stopped with all their children when the block ends. Raises `ServerError` when one does not come up."""
    for server in wanted:
        require_free(server)
    started: dict[Server, subprocess.Popen[bytes]] = {}
    try:
        for server in wanted:
            started[server] = _start(root, server)
        deadline = time.monotonic() + START_SECONDS
        for server in wanted:
            _wait_for(root, server, started[server], deadline)
        yield started
    finally:
        stop_groups(list(started.values()))


def wait_for_end(root: Path, started: dict[Server, subprocess.Popen[bytes]]) -> None:
    """Return never but by Ctrl-C; raises `ServerError` when a server ends by itself."""
    while True:
        for server, process in started.items():
            if process.poll() is not None:
                raise ServerError(_ended(root, server, process))
        time.sleep(0.5)


def require_free(server: Server) -> None:
    """Raise `ServerError` when something already listens on the server's port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, server.port))
        except OSError as error:
            raise ServerError(f"port {server.port} for {server.name} cannot be used ({error.strerror}): choose another with {server.option}") from error


def log_path(root: Path, server: Server) -> Path:
    return root / ".work" / "logs" / f"{server.name.lower()}.log"


def stop_groups(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End each process and everything it started: SIGINT, then SIGTERM, then SIGKILL to its process group."""
    for number, seconds in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for process in processes:
            _signal_group(process, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(_group_lives(process) for process in processes):
            time.sleep(0.1)


def _start(root: Path, server: Server) -> subprocess.Popen[bytes]:
    log = log_path(root, server)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        return subprocess.Popen(
            server.command,
            cwd=root,
            env=environment(root, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_in_child,
        )


def _in_child() -> None:
    """A process started in the background inherits an ignored SIGINT; the servers must hear it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent()


def _wait_for(root: Path, server: Server, process: subprocess.Popen[bytes], deadline: float) -> None:
    while not _answers(server):
        if process.poll() is not None:
            raise ServerError(_ended(root, server, process))
        if time.monotonic() > deadline:
            raise ServerError(f"{server.name} does not answer at {server.address} after {START_SECONDS:.0f} seconds: see {log_path(root, server)}")
        time.sleep(0.25)


def _answers(server: Server) -> bool:
    # http.client, because urllib would go through a proxy of the user's.
    connection = http.client.HTTPConnection(HOST, server.port, timeout=5)
    try:
        connection.request("GET", server.health)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ended(root: Path, server: Server, process: subprocess.Popen[bytes]) -> str:
    log = log_path(root, server)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    return f"{server.name} ended with status {process.returncode}; the end of {log}:\n{tail}"


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # a dead leader would otherwise stay as a zombie of its group
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True

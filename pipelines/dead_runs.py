"""Runs whose processes are gone, after a power cut or `kill -9`: Dagster counts them as at work, and all later ones would wait for ever."""

import os
import socket
from functools import partial
from pathlib import Path

import dagster as dg

from pipelines.processes import RUN_ID, end, living_processes, processes_with

HOST_TAG = "grpo/host"
"""Where a run works: its processes can only be looked for there."""
KERNEL_TAG = "grpo/boot_and_pid_namespace"
"""The boot of the machine and the namespace of process numbers that a run works in."""
CLOCK_SLACK_SECONDS = 5.0
LEFTOVER_SECONDS = 90.0
"""A training step and a checkpoint must fit in here."""


def host_tags() -> dict[str, str]:
    """The tags that let `release_dead_runs` judge a run later."""
    return {HOST_TAG: socket.gethostname(), KERNEL_TAG: f"{_boot_id()} {os.readlink('/proc/self/ns/pid')}"}


def release_dead_runs(instance: dg.DagsterInstance, pool: str) -> list[str]:
    """Mark as failed every run that holds or awaits a slot of `pool` but has no living process on this machine, and free its slot; their ids.

    A stage hears of its run's death by a signal and ends; one that did not is stopped here: it would hold DVC's lock.
    """
    dead = [run for run in _holders(instance, pool) if run.is_finished or _is_dead(instance, run)]
    for run in dead:
        end(partial(processes_with, RUN_ID, run.run_id), LEFTOVER_SECONDS)
        if not run.is_finished:
            instance.report_run_failed(run, "its process is gone: the machine stopped, or the process was killed outright")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def runs_at_work(instance: dg.DagsterInstance, pool: str) -> list[str]:
    """Ids of the runs that hold a slot of `pool`."""
    return sorted(instance.event_log_storage.get_concurrency_info(pool).active_run_ids)


def _holders(instance: dg.DagsterInstance, pool: str) -> list[dg.DagsterRun]:
    """Runs with a slot, or in line for one (a slot that falls to a dead run in line is lost too)."""
    info = instance.event_log_storage.get_concurrency_info(pool)
    ids = info.active_run_ids | info.pending_run_ids | info.assigned_run_ids
    return [run for run in map(instance.get_run_by_id, sorted(ids)) if run is not None]


def _is_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether none of the processes that wrote the run's events lives.

    None does when this host has booted since. A run of another host is not judged, unless only our host name changed. A process that
    started after the event took over the number of one that ended.
    """
    here = host_tags()
    same_host = run.tags.get(HOST_TAG, here[HOST_TAG]) == here[HOST_TAG]
    kernel = run.tags.get(KERNEL_TAG)
    if not same_host and kernel != here[KERNEL_TAG]:
        return False
    if kernel is not None and not kernel.startswith(_boot_id()):
        return True
    booted = _boot_time()
    started = {process.pid: booted + process.started / os.sysconf("SC_CLK_TCK") for process in living_processes()}
    written = [(entry.dagster_event.pid, entry.timestamp) for entry in instance.all_logs(run.run_id) if entry.dagster_event and entry.dagster_event.pid]
    return bool(written) and not any(pid in started and started[pid] <= when + CLOCK_SLACK_SECONDS for pid, when in written)


def _boot_id() -> str:
    """Random name of the time since this machine started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _boot_time() -> float:
    """When this machine started, in seconds since the epoch; processes count their start from there."""
    lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("btime")))

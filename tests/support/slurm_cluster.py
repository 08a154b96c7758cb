"""A private Slurm on this machine: munge, slurmctld, three slurmd and, if wanted, slurmdbd with MariaDB.

`python tests/support/slurm_cluster.py FOLDER dbd|nodbd [PREFIX]` brings one up, prints what to export, and
takes it down on Ctrl-C.

A node is a slurmd in a PID namespace of its own, so that killing the namespace is a power cut: nothing of a job
outlives its node. Nodes declare 68 CPUs and two GPUs (twins of /dev/null) whatever the machine has.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ports import free_port

NODES = ("n1", "n2", "n3")
USER = "games"
"""An ordinary account of every Debian, which has jobs on a strict cluster."""
ACCOUNT, FEW = "lab", "few"
"""The account that the jobs of USER are charged to, and a quality of service that allows two jobs at a time."""
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmdbd": "slurmdbd slurm-wlm-mysql-plugin",
    "mariadbd": "mariadb-server",
    "unshare": "util-linux",
}
SLURM_CONF = """\
ClusterName={name}
SlurmctldHost=localhost
SlurmctldPort={ctld_port}
AuthType=auth/munge
# A requeued job waits cred_expire seconds before it may start again.
AuthInfo=socket={munge}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
ProctrackType={proctrack}
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=20
# Answers may take long on a machine that is busy.
MessageTimeout=60
MinJobAge={min_job_age}
KillWait={kill_wait}
# Clusters on one machine share the cgroups of its nodes' names, where each job has one of its number.
FirstJobId={first_job}
CompleteWait=0
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_continue
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{settings}
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{slurmd_ports}] CPUs=68 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=68 ThreadsPerCore=1 RealMemory=100000 Gres=gpu:2 Feature=fast,new State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
LENIENT = {"MpiDefault": "none"}
"""Settings of a cluster whose only user is root, whom nothing is refused."""
STRICT = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "PrivateData": "accounts,events,jobs,reservations,usage,users",
    "KillOnBadExit": "1",
    "DefMemPerCPU": "200",
    "MpiDefault": "pmix",  # whose library is not there
}
"""Settings that administrators make, or leave to vendors."""
CGROUPS = "needs cgroups v1, mounted and writable below /sys/fs/cgroup"
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge}/munge.sock
DbdHost=localhost
DbdPort={dbd_port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
{settings}
"""


def missing(dbd: bool) -> str:
    """Returns what has to be installed before a cluster can be brought up; empty if nothing."""
    if os.geteuid() != 0:
        return "bringing up a Slurm cluster needs root"
    wanted = [tool for tool in PACKAGES if dbd or tool not in ("slurmdbd", "mariadbd")]
    lacking = [PACKAGES[tool] for tool in wanted if not shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    if lacking:
        return f"needs: apt-get install {' '.join(lacking)}"
    allowed = subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0
    return "" if allowed else "bringing up a Slurm cluster needs a machine that allows namespaces (CAP_SYS_ADMIN)"


def described() -> str:
    """Returns on what the tests run here, and what is missing for them to run as on most clusters."""
    if lacking := missing(dbd=True):
        return f"skipped, {lacking}"
    tracking = default_proctrack()
    return tracking if tracking == "proctrack/cgroup" else f"{tracking} in place of proctrack/cgroup, which {CGROUPS}"


def default_proctrack() -> str:
    """Returns how Slurm tells which processes belong to a job: as most sites do, where this machine has cgroups v1.

    It decides what is signalled: a replica's first process with cgroups, all of its processes with linuxproc.
    """
    has_cgroups = os.access("/sys/fs/cgroup/freezer/release_agent", os.W_OK)
    return "proctrack/cgroup" if has_cgroups else "proctrack/linuxproc"


class Cluster:
    """A running cluster; `env` is what a shell needs in order to use it.

    Args:
        folder: Where everything of it lives: a short path, as it holds sockets.
        dbd: Whether there is accounting.
        prefix: Folder into which another Slurm than the system's was unpacked (see slurm24.py).
        proctrack: Slurm's ProctrackType.
        strict: Set up as administrators do, for USER: an ordinary account, with limits and without the right to see
            the jobs of others.
        beside: Another cluster, whose accounting and keys this one shares: each knows the other's jobs, by `-M`.
    """

    def __init__(
        self,
        folder: Path,
        dbd: bool,
        prefix: Path | None = None,
        proctrack: str | None = None,
        strict: bool = False,
        beside: "Cluster | None" = None,
    ) -> None:
        self.folder, self.dbd, self.prefix = folder, dbd, prefix
        self.proctrack = proctrack or default_proctrack()
        self.user, self.settings = (USER, STRICT) if strict else ("root", LENIENT)
        self.beside = beside
        self.nodes = ("e1",) if beside else NODES
        self.name = "test" + re.sub(r"\W", "", folder.name).lower()
        self.env = {"SLURM_CONF": f"{folder}/slurm.conf"}
        if prefix:
            self.env["PATH"] = f"{prefix}/bin:{os.environ['PATH']}"
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(self._stopping)
            self._write_files()
            if not self.beside:
                self._start_munge()
                if self.dbd:
                    self._start_accounting()
            if self.user != "root":
                self._open_account()
            self._daemon("slurmctld", self.folder / "slurmctld.pid")
            for node in self.nodes:
                self.start_node(node)
            self._stopping.callback(self._stop_nodes)
            self._wait_for(self._has_idle_nodes)
            if self.dbd:
                self._wait_for(self._is_registered)
            self._start_ticker()
            self._stopping = on_failure.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.run("scancel", f"--user={self.user}", check=False)
        self._stopping.close()

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command against the cluster and returns what it printed."""
        done = subprocess.run(command, env=os.environ | self.env, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _has_idle_nodes(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        return states.count("idle") == len(self.nodes)

    def _is_registered(self) -> bool:
        """Whether slurmdbd knows where the controller is, by which other clusters reach it."""
        words = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", self.name, "format=ControlHost")
        return bool(self.run(*words, check=False).strip())

    def start_node(self, node: str) -> None:
        """Switches a node on."""
        hosts = f"mount --bind {self.folder}/hosts /etc/hosts"
        stepd = f"-d {self.prefix}/bin/slurmstepd" if self.prefix else ""
        slurmd = f"exec slurmd -D -f {self.folder}/slurm.conf -N {node} {stepd}"
        self._nodes[node] = self._spawn(*NAMESPACES, "bash", "-c", f"{hosts} && {slurmd}", log=f"node-{node}")

    @contextlib.contextmanager
    def controller_away(self) -> Iterator[None]:
        """Ends the controller, and starts it again after the block."""
        pid_file = self.folder / "slurmctld.pid"
        _stop(pid_file)
        try:
            yield
        finally:
            pid_file.unlink(missing_ok=True)
            self._start("slurmctld", pid_file)

    def cut_power(self, node: str) -> None:
        """Kills a node with all that runs on it."""
        self._nodes[node].kill()
        self._nodes[node].wait()

    def _stop_nodes(self) -> None:
        for node in self._nodes:
            self.cut_power(node)

    def _spawn(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.out").open("ab") as output:
            return subprocess.Popen(
                command, env=os.environ | self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _daemon(self, command: str, pid_file: Path) -> None:
        """Starts something that puts itself into the background, until the cluster is taken down."""
        self._start(command, pid_file)
        self._stopping.callback(_stop, pid_file)

    def _start(self, command: str, pid_file: Path) -> None:
        self.run(*command.split())
        self._wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())

    def _wait_for(self, condition: Callable[[], object], seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = [path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.log")]
                raise RuntimeError("the Slurm cluster did not come up:\n" + "\n".join(logs))
            time.sleep(0.1)

    def _write_files(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "spool").mkdir()
        self.folder.chmod(0o755)
        names = "".join(f"127.0.0.1 {name}\n" for name in self.nodes)
        (self.folder / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n{names}")
        nodes = ",".join(self.nodes)
        for gpu in range(2):
            os.mknod(self.folder / f"nvidia{gpu}", 0o20666, os.makedev(1, 3))
        gres = f"NodeName={nodes} Name=gpu File={self.folder}/nvidia[0-1] Flags=nvidia_gpu_env\n"
        (self.folder / "gres.conf").write_text(gres)
        plugins = {"PluginDir": f"{self.prefix}/root/usr/lib/x86_64-linux-gnu/slurm-wlm"} if self.prefix else {}
        version = re.search(r"\d+", self.run("slurmctld", "-V"))
        if self.proctrack == "proctrack/cgroup":
            (self.folder / "cgroup.conf").write_text(CGROUP_CONF)
        elif version and int(version[0]) >= 23:  # Older ones do not know this value, these look for cgroups without it.
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        self._ports = sorted(free_port() for _ in range(3 + len(self.nodes)))
        owner = self.beside or self  # of accounting and keys
        values = {
            "name": self.name,
            "folder": self.folder,
            "nodes": nodes,
            "ctld_port": self._ports[0],
            "slurmd_ports": ",".join(map(str, self._ports[3:])),
            "dbd_port": owner._ports[1],
            "munge": owner.folder,
            "proctrack": self.proctrack,
            "task": "task/cgroup" if self.proctrack == "proctrack/cgroup" else "task/none",
            # Slurm's default, and one that is too short for many a save.
            "kill_wait": 30 if self.dbd else 5,
            "first_job": 1000 * owner._ports[0],
            "sql_port": self._ports[2],
            # Without accounting, a job that has ended is forgotten at the next purge, which comes once a minute.
            "min_job_age": 300 if self.dbd else 2,
        }
        accounting = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": owner._ports[1],
            "AccountingStoragePass": f"{owner.folder}/munge.sock",
        }
        settings = self.settings | plugins | (accounting if self.dbd else {})
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(settings=_lines(settings), **values))
        dbd_conf = self.folder / "slurmdbd.conf"
        private = {"PrivateData": "accounts,events,jobs,usage,users"} if self.user != "root" else {}
        dbd_conf.write_text(SLURMDBD_CONF.format(settings=_lines(plugins | private), **values))
        dbd_conf.chmod(0o600)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{option}={self.folder}/{file}" for option, file in files.items()]
        self._daemon(
            f"munged --force --seed-file={self.folder}/munge.seed {' '.join(options)}", self.folder / "munged.pid"
        )

    def _start_accounting(self) -> None:
        data, sock = self.folder / "mysql", self.folder / "mysql.sock"
        # In a shared /tmp, a server that starts deletes the temporary tables of others, which abort or crash.
        (self.folder / "mysql-tmp").mkdir()
        everywhere = ("--no-defaults", "--user=root", f"--datadir={data}", f"--tmpdir={self.folder}/mysql-tmp")
        self.run("mariadb-install-db", *everywhere, "--auth-root-authentication-method=normal", "--skip-test-db")
        database = self._spawn(
            *("mariadbd", *everywhere, f"--socket={sock}", "--bind-address=127.0.0.1", f"--port={self._ports[2]}"),
            *("--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"),
            log="mariadbd",
        )
        self._stopping.callback(_end, database.pid)
        client = ("mariadb", "--no-defaults", "-uroot", "-S", str(sock), "-e")
        user = "create user 'slurm'@'127.0.0.1' identified by 'slurm'"
        grant = "grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'"
        self._wait_for(lambda: sock.exists() and _listens(self._ports[2]))
        self.run(*client, f"{user}; {grant}")
        self._daemon("slurmdbd", self.folder / "slurmdbd.pid")
        self._wait_for(lambda: _listens(self._ports[1]))

    def _open_account(self) -> None:
        """Lets USER submit jobs, as many as wanted unless with `--qos=few`."""
        self.run("sacctmgr", "-i", "add", "cluster", self.name)
        if not self.beside:
            self.run("sacctmgr", "-i", "add", "qos", FEW, "MaxSubmitJobsPerUser=2")
        self.run("sacctmgr", "-i", "add", "account", ACCOUNT, f"cluster={self.name}", f"qos=normal,{FEW}")
        self.run("sacctmgr", "-i", "add", "user", self.user, f"account={ACCOUNT}", f"cluster={self.name}")

    def _start_ticker(self) -> None:
        """Lets the scheduler look once a second: an idle one may let a requeued job wait for minutes."""
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(1):
                self.run("scontrol", "update", f"NodeName={self.nodes[0]}", "Comment=tick", check=False)

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        self._stopping.callback(thread.join)
        self._stopping.callback(stop.set)


def _lines(settings: dict[str, object]) -> str:
    return "\n".join(f"{name}={value}" for name, value in settings.items())


def _stop(pid_file: Path) -> None:
    """Ends the daemon that has written its number into a file."""
    _end(int(pid_file.read_text()))


def _end(pid: int) -> None:
    """Ends a process that is not a child of this one, or has been waited for by nobody yet."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(folder: str, accounting: str, prefix: str = "") -> None:
    """Keeps a cluster up until Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    Path(folder).mkdir(parents=True)
    with Cluster(Path(folder).resolve(), accounting == "dbd", Path(prefix).resolve() if prefix else None) as cluster:
        print(*(f"export {name}={value}" for name, value in cluster.env.items()), sep="\n", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])

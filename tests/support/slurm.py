"""A real Slurm of two nodes for a test: munged, slurmctld and two slurmd, everything in one folder and on free ports.

Each node has a host name, a hosts file, an address of the loopback network and process ids of its own (`unshare`), so
to each node the other's processes are those of another machine; they share the disk, as a cluster's nodes do. Killing a
node's first process ends all its processes at once, as a power failure does.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import helpers

BINARIES = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "unshare")
NODES = {"node1": "127.0.1.1", "node2": "127.0.1.2"}  # with two processors each
# A job's environment begins with that of a login shell. Its files are empty on a node: what they start, pyenv say,
# would leave locks behind where a node is lost, and later jobs would wait for those.
MACHINE = """hostname "$0"; mount --bind "$1/hosts" /etc/hosts
for file in ~root/.profile ~root/.bash_profile ~root/.bash_login ~root/.bashrc; do
    if [ -f "$file" ]; then mount --bind /dev/null "$file"; fi
done
slurmd -D -f "$1/slurm.conf" -N "$0" """
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
FirstJobId={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
SlurmdUser=root
ReturnToService=2
SlurmdTimeout=10
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP
"""


def missing() -> str:
    """Why no Slurm can be started here, as the reason of a skip, or nothing."""
    if absent := [name for name in BINARIES if not shutil.which(name)]:
        return f"without Slurm: {', '.join(absent)} not found (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "without root: slurmd needs it"


class Cluster:
    """Starts in the constructor; stop() ends its processes and removes its folder."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)  # munge wants its socket in a folder that all can enter
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        controller_port, *ports = _free_ports(1 + len(NODES))
        described = [
            f"NodeName={name} NodeAddr={address} Port={port} CPUs=2 RealMemory=1000"
            for (name, address), port in zip(NODES.items(), ports, strict=True)
        ]
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(described)
        self._conf = self.folder / "slurm.conf"
        self._conf.write_text(CONF.format(folder=self.folder, host=host, controller_port=controller_port, nodes=nodes))
        self.environment = {"SLURM_CONF": str(self._conf)}
        self._munged = self._start(
            "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        self._controller = self._start_controller()
        self._nodes = {name: self._start_node(name) for name in NODES}
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Waits until every node is up, whether or not it has jobs."""
        deadline = time.monotonic() + 300
        while not all(state in ("idle", "mixed", "allocated", "completing") for state in self.states().values()):
            if time.monotonic() > deadline:
                self.stop(keep=True)
                raise RuntimeError(f"Slurm's nodes are not up after five minutes; its logs are in {self.folder}")
            time.sleep(0.2)

    def states(self) -> dict[str, str]:
        """The nodes' states as sinfo names them; all "unknown" while the controller gives no answer."""
        output = self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False).stdout.split()
        return dict.fromkeys(NODES, "unknown") | dict(zip(output[::2], output[1::2], strict=True))

    @contextlib.contextmanager
    def without_controller(self):
        """Within the block, there is no controller."""
        _end(self._controller)
        yield
        self._controller = self._start_controller()
        self.wait_for_nodes()

    @contextlib.contextmanager
    def halted(self):
        """Within the block, the controller does nothing, and is there."""
        helpers.halt(self._controller.pid)
        try:
            yield
        finally:
            self._controller.send_signal(signal.SIGCONT)

    def lose(self, node: str) -> None:
        """Ends every process of the node at once; the controller is not told."""
        _end(self._nodes[node], kill=True)

    def find_again(self, node: str) -> None:
        """Starts a node that was lost."""
        self._nodes[node] = self._start_node(node)
        self.wait_for_nodes()

    def call(self, *command, check=True):
        """Runs one of Slurm's commands."""
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, (command, done.stderr)
        return done

    def clear(self) -> None:
        """Cancels what is queued or runs, and gives nodes that Slurm drained work again."""
        self.call("scancel", "--user=root", check=False)
        deadline = time.monotonic() + 60
        while self.call("squeue", "-h", check=False).stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for node, state in self.states().items():
            if "drain" in state or "down" in state:
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def report(self) -> str:
        """The queue, the nodes with the reasons of those that take no job, and the end of each log."""
        commands = (["squeue", "-r", "-o", "%i %j %T %r %N"], ["sinfo", "-N", "-o", "%N %T %E"])
        output = [self.call(*command, check=False).stdout for command in commands]
        for log in sorted(self.folder.glob("slurm*.log")):
            output.append(f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:]))
        return "\n".join(output)

    def stop(self, keep=False):
        self.call("scancel", "--user=root", check=False)
        deadline = time.monotonic() + 15
        while self.call("squeue", "-h", check=False).stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for node in self._nodes.values():
            _end(node, kill=True)
        for daemon in (self._controller, self._munged):
            _end(daemon)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start_controller(self):
        return self._start("slurmctld", "-D", "-f", str(self._conf))

    def _start_node(self, name: str):
        machine = ("unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
        return self._start(*machine, "sh", "-c", MACHINE, name, str(self.folder))

    def _start(self, *command):
        with open(self.folder / f"{command[0]}.out", "ab") as out:
            return subprocess.Popen(
                command, env=os.environ | self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )


def _end(process, kill: bool = False) -> None:
    process.kill() if kill else process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports

"""A real Slurm of one node for a test: munged, slurmctld and slurmd, everything in one folder and on free ports."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

BINARIES = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
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
KillWait=30
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Why no Slurm can be started here, or nothing."""
    if absent := [name for name in BINARIES if not shutil.which(name)]:
        return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Cluster:
    """Starts in the constructor; stop() ends its processes and removes its folder."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)  # munge wants its socket in a folder that all can enter
        self.host = socket.gethostname().split(".")[0]
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        conf = self.folder / "slurm.conf"
        ports = dict(zip(("controller_port", "node_port"), _free_ports(2)))
        conf.write_text(CONF.format(folder=self.folder, host=self.host, **ports))
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.environment = {"SLURM_CONF": str(conf)}
        self._daemons = [
            self._start(
                "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munged.seed",
            ),
            self._start("slurmctld", "-D", "-f", str(conf)),
            self._start("slurmd", "-D", "-f", str(conf), "-N", self.host),
        ]  # fmt: skip
        deadline = time.monotonic() + 60
        while self.call("sinfo", "-h", "-o", "%T", check=False).stdout.strip() != "idle":
            if time.monotonic() > deadline:
                self.stop(keep=True)
                raise RuntimeError(f"Slurm did not start within a minute; its logs are in {self.folder}")
            time.sleep(0.2)

    def call(self, *command, check=True):
        """Runs one of Slurm's commands."""
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, (command, done.stderr)
        return done

    def stop(self, keep=False):
        self.call("scancel", "--user=root", check=False)
        deadline = time.monotonic() + 15
        while self.call("squeue", "-h", check=False).stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *command):
        with open(self.folder / f"{command[0]}.out", "wb") as out:
            return subprocess.Popen(
                command, env=os.environ | self.environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports

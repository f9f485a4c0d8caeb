"""GKE's fast networks between GPU machines, as a patch of the pod: TCPX, TCPXO and RDMA.

Sources: GKE, "Maximize GPU network bandwidth in Standard mode clusters" (TCPX, TCPXO); AI Hypercomputer, "Create a
custom AI-optimized GKE cluster" for A3 Ultra, A4 and A4X (RDMA); release notes of TCPXO's NCCL plugin, January 2026.
None of this has run on a cluster. The cluster must be set up as those pages say: networks with the names below, NCCL's
plugin and the device injector on the nodes. Where its names differ, --pod_patch corrects them: it is merged last. An
NVLink domain of several GB200 machines (a ComputeDomain and its resourceClaims) needs --pod_patch as well.
"""

import json

from jmoe.errors import UserError
from launch import accelerators

IMAGES = "us-docker.pkg.dev/gce-ai-infra/gpudirect-"
LIBRARIES = "/usr/local/nvidia/lib64"
NVIDIA = "/home/kubernetes/bin/nvidia"  # on the machine, where the plugin's installer puts drivers and NCCL
HOST_DIRS = {"nvidia": NVIDIA, "sys": "/sys", "proc-sys": "/proc/sys"}
FOR_DAEMON = {"nvidia": "/usr/local/nvidia", "sys": "/hostsysfs", "proc-sys": "/hostprocsysfs"}
# The variables that TCPX's page sets; the plugins of TCPXO and RDMA bring a script that sets theirs
TCPX_ENV = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_PXN_LEVEL": "0",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
    "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "1000000",
    "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
    "NCCL_GPUDIRECTTCPX_TX_BINDINGS": "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177",
    "NCCL_GPUDIRECTTCPX_RX_BINDINGS": "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_P2P_PCI_CHUNKSIZE": "524288",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_BUFFSIZE": "4194304",
}


def check(place, accelerator: str) -> None:
    """Raises UserError if --gpudirect cannot be used with --accelerator."""
    n = accelerators.gpus_of_machine(place.kind)
    if place.kind not in accelerators.GPUDIRECT:
        raise UserError(f"--gpudirect: {place.kind} has none; it is for {accelerators.gpudirect_words()}")
    if place.chips_per_host != n:
        raise UserError(
            f"--gpudirect wants whole machines of {n} GPUs, as --accelerator={place.kind}:2x{n}, not {accelerator}"
        )


def patch(place, command: list[str]) -> dict:
    """The patch that gives a pod on `place` the fast network; `command` is what starts its trainer."""
    make = {"tcpx": _tcpx, "tcpxo": _tcpxo, "rdma": _rdma}[accelerators.GPUDIRECT[place.kind]]
    return make(accelerators.gpus_of_machine(place.kind), command)


def _tcpx(n_gpus: int, command) -> dict:
    daemon = {
        "name": "tcpx-daemon",
        "image": f"{IMAGES}tcpx/tcpgpudmarxd-dev:v2.0.11",
        "restartPolicy": "Always",  # an init container that runs beside the trainer and ends with it
        "command": ["/tcpgpudmarxd/build/app/tcpgpudmarxd", "--gpu_nic_preset", "a3vm", "--gpu_shmem_type", "fd"]
        + ["--uds_path", "/run/tcpx", "--setup_param", "--verbose 128 2 0"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        "env": _env({"LD_LIBRARY_PATH": LIBRARIES}),
        "volumeMounts": _mounts(FOR_DAEMON | {"tcpx-socket": "/run/tcpx"}),
    }
    trainer = {
        "name": "trainer",
        "env": _env({"LD_LIBRARY_PATH": LIBRARIES} | TCPX_ENV),
        "volumeMounts": _mounts({"nvidia": "/usr/local/nvidia", "tcpx-socket": "/run/tcpx"}),
    }
    annotations = _annotations([f"vpc{i + 1}" for i in range(4)])
    annotations["devices.gke.io/container.tcpx-daemon"] = _devices(n_gpus)
    return _pod(annotations, trainer, HOST_DIRS | {"tcpx-socket": "/run/tcpx"}, [daemon])


def _tcpxo(n_gpus: int, command) -> dict:
    start = "chmod 755 /fts/entrypoint_rxdm_container.sh && exec /fts/entrypoint_rxdm_container.sh"
    daemon = {
        "name": "tcpxo-daemon",
        "image": f"{IMAGES}tcpxo/tcpgpudmarxd-dev:v1.0.21",  # goes with plugin v1.0.15 on the nodes
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-c", f"{start} --num_hops=2 --num_nics=8"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]}},
        "env": _env({"LD_LIBRARY_PATH": LIBRARIES}),
        "volumeMounts": _mounts(FOR_DAEMON),
    }
    own = {"NCCL_LIB_DIR": LIBRARIES, "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices"}
    trainer = {
        "name": "trainer",
        "env": _env({"LD_LIBRARY_PATH": LIBRARIES} | own),
        "volumeMounts": _mounts({"nvidia": "/usr/local/nvidia", "aperture-devices": "/dev/aperture_devices"}),
    } | _after(f"{LIBRARIES}/nccl-env-profile.sh", command)
    annotations = _annotations([f"vpc{i + 1}" for i in range(8)])
    annotations["devices.gke.io/container.tcpxo-daemon"] = _devices(n_gpus, "/dev/dmabuf_import_helper")
    return _pod(annotations, trainer, HOST_DIRS | {"aperture-devices": "/dev/aperture_devices"}, [daemon])


def _rdma(n_gpus: int, command) -> dict:
    trainer = {
        "name": "trainer",
        "env": _env({"LD_LIBRARY_PATH": f"{LIBRARIES}:/usr/local/gib/lib64"}),
        "volumeMounts": _mounts({"nvidia": "/usr/local/nvidia", "gib": "/usr/local/gib"}),
    } | _after("/usr/local/gib/scripts/set_nccl_env.sh", command)
    annotations = _annotations(["gvnic-1", *(f"rdma-{i}" for i in range(n_gpus))])
    return _pod(annotations, trainer, {"nvidia": NVIDIA, "gib": "/home/kubernetes/bin/gib"}, [])


def _after(script: str, command) -> dict:
    """Runs `command` after the plugin's script, which sets variables whose names change with its version. bash does not
    interpret the arguments: they reach "$@" unchanged ($$ is how Kubernetes writes $)."""
    run = ["bash", "-c", f'. {script} && exec "$$@"', "bash", *command]
    return {"command": run}


def _pod(annotations, trainer, host_dirs, daemons) -> dict:
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in host_dirs.items()]
    spec = {"containers": [trainer], "volumes": volumes} | ({"initContainers": daemons} if daemons else {})
    return {"metadata": {"annotations": annotations}, "spec": spec}


def _annotations(networks: list[str]) -> dict[str, str]:
    interfaces = [{"interfaceName": f"eth{i}", "network": name} for i, name in enumerate(["default", *networks])]
    return {"networking.gke.io/default-interface": "eth0", "networking.gke.io/interfaces": json.dumps(interfaces)}


def _devices(n_gpus: int, *more: str) -> str:
    """The devices that GKE's injector gives the daemon, as the YAML that its annotation holds."""
    paths = [*(f"/dev/nvidia{i}" for i in range(n_gpus)), "/dev/nvidiactl", "/dev/nvidia-uvm", *more]
    return "".join(f"- path: {path}\n" for path in paths)


def _env(variables: dict[str, str]) -> list[dict]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _mounts(places: dict[str, str]) -> list[dict]:
    return [{"name": name, "mountPath": path} for name, path in places.items()]

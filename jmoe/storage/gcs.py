"""gs:// through gcsfs, with patience: a request that the store does not answer is retried for minutes.

jmoe/storage/files.py registers this class with fsspec for gs://, so it serves fsspec and etils.epath: workdirs, sweeps,
Orbax's listings and metadata, compiled steps. Arrays are moved by TensorStore, which retries its own requests.

A process that owns a workdir (jmoe/storage/ownership.py) asks before each request that changes something whether it
still does, and replaces each object only as it is now: a write that arrives after another owner's is refused.
"""

import asyncio
import json
import re
from urllib.parse import unquote

import gcsfs

from jmoe.errors import Unavailable
from jmoe.storage import files as storage


class Store(gcsfs.GCSFileSystem):
    _request_once = gcsfs.GCSFileSystem._request.__wrapped__  # gcsfs's own retries end after half a minute

    async def _request(self, method, path, *args, **kwargs):
        patience, upload = None, kwargs.get("uploadType") == "resumable" and "ifGenerationMatch" not in kwargs
        while True:
            try:
                if method != "GET" and storage.ask() is not None and upload:
                    kwargs["ifGenerationMatch"] = await self._generation(path)
                    storage.ask()
                return await storage.unless_hurried(self._request_once(method, path, *args, **kwargs))
            except FileNotFoundError:
                # An earlier try may have done it and its answer got lost: ours, or a DELETE that aiohttp sent unseen.
                if method == "DELETE":
                    return 204, {}, None, b""
                if patience and path == "b/{}/o/{}/moveTo/o/{}":  # the object at its new name; not found if none moved
                    return await self._request("GET", "b/{}/o/{}", args[0], args[2], **kwargs)
                raise
            except Exception as error:  # noqa: BLE001  gcsfs, aiohttp, requests, google.auth raise their own
                changed = isinstance(error, FileExistsError) and upload  # since we looked; by one that needs no lease
                if isinstance(error, FileExistsError) and "upload_id=" in path:
                    raise Unavailable(f"{_object_in(path, args)}: another process replaced it meanwhile") from error
                if not storage.passes(error) and not isinstance(error, TimeoutError) and not changed:
                    raise
                patience = patience or storage.Patience(_object_in(path, args))
                await storage.unless_hurried(asyncio.sleep(patience.pause(error)))

    async def _generation(self, path: str) -> str:
        """The generation of the object that an upload to this address replaces; 0 if there is none."""
        bucket, name = _object_in(path, ()).removeprefix("gs://").split("/", 1)
        try:
            _, _, _, found = await self._request("GET", "b/{}/o/{}", bucket, name, fields="generation")
            return json.loads(found)["generation"]
        except FileNotFoundError:
            return "0"


def _object_in(path: str, args: tuple) -> str:
    """The bucket and object of a request, which stand in `args` or in the address."""
    in_address = re.search(r"\bb/([^/?]+)(?:/o\?name=([^&]+))?", path)
    names = args[:2] or (in_address.groups() if in_address else ())
    return "gs://" + "/".join(unquote(name) for name in names if name)

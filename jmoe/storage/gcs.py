"""gs:// through gcsfs, with patience: a request that the store does not answer is retried for minutes.

jmoe/storage/files.py registers this class with fsspec for gs://, so it serves fsspec and etils.epath: workdirs, sweeps,
Orbax's listings and metadata, compiled steps. Arrays are moved by TensorStore, which retries its own requests.
"""

import asyncio
import re
from urllib.parse import unquote

import gcsfs

from jmoe.storage import files as storage

MOVE = "b/{}/o/{}/moveTo/o/{}"  # gcsfs's request of a move in a bucket: bucket, object, new name


class Store(gcsfs.GCSFileSystem):
    _request_once = gcsfs.GCSFileSystem._request.__wrapped__  # gcsfs's own retries end after half a minute

    async def _request(self, method, path, *args, **kwargs):
        patience = None
        while True:
            try:
                return await storage.unless_hurried(self._request_once(method, path, *args, **kwargs))
            except FileNotFoundError:
                # An earlier try may have done it and its answer got lost: ours, or a DELETE that aiohttp sent unseen.
                if method == "DELETE":
                    return 204, {}, None, b""
                if patience and path == MOVE:  # returns the object at its new name; not found if nothing moved
                    return await self._request("GET", "b/{}/o/{}", args[0], args[2], **kwargs)
                raise
            except Exception as error:  # noqa: BLE001  gcsfs, aiohttp, requests, google.auth raise their own
                if not storage.passes(error) and not isinstance(error, TimeoutError):
                    raise
                patience = patience or storage.Patience(_object_in(path, args))
                await storage.unless_hurried(asyncio.sleep(patience.pause(error)))


def _object_in(path: str, args: tuple) -> str:
    """The bucket and object of a request, which stand in `args` or in the address."""
    in_address = re.search(r"\bb/([^/?]+)(?:/o\?name=([^&]+))?", path)
    names = args[:2] or (in_address.groups() if in_address else ())
    return "gs://" + "/".join(unquote(name) for name in names if name)

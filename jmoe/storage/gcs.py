"""gs:// through gcsfs, with patience: a request that the store does not answer is retried for minutes.

jmoe/storage/files.py registers this class with fsspec for gs://, so it serves fsspec and etils.epath: workdirs, sweeps,
Orbax's listings and metadata, compiled steps. Arrays are moved by TensorStore, which retries its own requests.

A process that owns a workdir (jmoe/storage/ownership.py) checks before each request that changes something whether it
still does. It replaces, moves and deletes each object only as it is now: a request that arrives after another owner's
is refused.
"""

import asyncio
import json
import re
from typing import Any
from urllib.parse import unquote

import gcsfs
from fsspec import asyn

from jmoe.errors import Unavailable
from jmoe.storage import owner_check, retries

MOVE = "b/{}/o/{}/moveTo/o/{}"
DELETIONS = 32  # at once


class Store(gcsfs.GCSFileSystem):  # ty: ignore[unsupported-base]
    """gcsfs with this module's retries and conditions."""

    _request_once = gcsfs.GCSFileSystem._request.__wrapped__  # gcsfs's own retries end after half a minute

    async def _request(self, method: str, path: str, *args: Any, **kwargs: Any) -> tuple[int, Any, Any, Any]:
        """Sends a request until the store answers; returns gcsfs's (status, headers, info, content)."""
        patience = None
        condition = _condition(method, path, kwargs)
        while True:
            try:
                is_owner = method != "GET" and owner_check.check_owner() is not None
                if is_owner and condition:
                    kwargs[condition] = await self._generation(path, args)
                    owner_check.check_owner()  # again: the answer may have taken long
                    if kwargs[condition] == "0" and "uploadType" not in kwargs:
                        raise FileNotFoundError(_object_in(path, args))
                return await retries.unless_hurried(self._request_once(method, path, *args, **kwargs))
            except FileNotFoundError:
                # An earlier try may have succeeded and its answer got lost: ours, or a DELETE that aiohttp sent unseen.
                if method == "DELETE":
                    return 204, {}, None, b""
                if patience and path == MOVE:  # the object at its new name; not found if none moved
                    return await self._request("GET", "b/{}/o/{}", args[0], args[2])
                raise
            except Exception as error:  # noqa: BLE001  gcsfs, aiohttp, requests, google.auth raise their own
                # the object changed since its generation was read, by a program that takes no lease: read it again
                changed = isinstance(error, FileExistsError) and condition in kwargs
                if isinstance(error, FileExistsError) and "upload_id=" in path:
                    raise Unavailable(f"{_object_in(path, args)}: another process replaced it meanwhile") from error
                if not retries.passes(error) and not isinstance(error, TimeoutError) and not changed:
                    raise
                if patience is None:
                    patience = retries.Patience(_object_in(path, args))
                await retries.unless_hurried(asyncio.sleep(patience.pause(error)))

    async def _delete_files(self, files: list[str], batchsize: int) -> list[Any]:
        """Deletes objects, each by a request of its own.

        gcsfs would send batches, which name no generation, and give up after a minute where the store answers 503
        within one.
        """
        return await asyn._run_coros_in_chunks(
            [self._rm_file(file) for file in files], batch_size=DELETIONS, return_exceptions=True
        )

    async def _generation(self, path: str, args: tuple[Any, ...]) -> str:
        """The generation of the object that a request to this address changes; 0 if there is none."""
        bucket, name = _object_in(path, args).removeprefix("gs://").split("/", 1)
        try:
            _, _, _, content = await self._request("GET", "b/{}/o/{}", bucket, name, fields="generation")
            return json.loads(content)["generation"]
        except FileNotFoundError:
            return "0"


def _condition(method: str, path: str, query: dict[str, Any]) -> str | None:
    """The parameter for the generation of the object that a request replaces, moves or deletes.

    None where the request changes no object, or only continues an upload.
    """
    if path == MOVE:
        return "ifSourceGenerationMatch"
    deletes = method == "DELETE" and path == "b/{}/o/{}"
    uploads = query.get("uploadType") == "resumable"
    return "ifGenerationMatch" if (deletes or uploads) and "ifGenerationMatch" not in query else None


def _object_in(path: str, args: tuple[Any, ...]) -> str:
    """The bucket and object of a request, which stand in `args` or in the address."""
    in_address = re.search(r"\bb/([^/?]+)(?:/o\?name=([^&]+))?", path)
    if args:
        names = args[:2]
    else:
        names = in_address.groups() if in_address else ()
    return "gs://" + "/".join(unquote(name) for name in names if name)

"""The storage emulator, with four things that the real service does and it does not, and without one that it does.

The header that tells an object's generation: tensorstore compares generations when it reads an object again, and fails
on an object that came without one. Preconditions: ifGenerationMatch, which a lease is made of. And whoever did not hear
that an upload is complete may send its end once more. And an object can be moved within its bucket in one request,
with the precondition ifSourceGenerationMatch.

After each write the emulator stores the names of all objects that there are or were, for its next start. Objects in
memory have no next start, and this took more time than all else.

    python tests/support/gcs_server.py start --port=PORT --in-memory --default-bucket=NAME
"""

import http
import sys
import threading

from gcp_storage_emulator import storage as stored
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

plain_download = objects.download
uploaded = {}  # what was told of complete uploads, by their ids
writing = threading.Lock()  # a precondition and its write are one


def download(request, response, storage, *args, **kwargs):
    try:
        result = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
        response["x-goog-generation"] = result["generation"]
    except NotFound:
        pass
    plain_download(request, response, storage, *args, **kwargs)


def conditional(plain, name_of, parameter="ifGenerationMatch"):
    """`plain`, refused with 412 where the query asks for another generation than the object's; 0 is no object."""

    def handler(request, response, storage, *args, **kwargs):
        with writing:
            done = request.query.get("upload_id", [None])[0] in uploaded
            if (wanted := request.query.get(parameter)) and not done:
                try:
                    generation = storage.get_file_obj(request.params["bucket_name"], name_of(request))["generation"]
                except NotFound:
                    generation = "0"
                if wanted[0] != generation:
                    _ = request.data  # or the next request on this connection would begin with it
                    response.status = http.HTTPStatus.PRECONDITION_FAILED
                    response.json({"error": {"code": 412, "message": "conditionNotMet"}})
                    return
            plain(request, response, storage, *args, **kwargs)

    return handler


def write_no_names(storage) -> None:
    """Stands for the emulator's own record of all names."""


stored.Storage._write_config_to_file = write_no_names

# before the server builds its table of handlers
objects.download = download
objects.insert = conditional(objects.insert, lambda request: request.query["name"][0])
objects.delete = conditional(objects.delete, lambda request: request.params["object_id"])


plain_upload = objects.upload_partial


def upload_partial(request, response, storage, *args, **kwargs):
    name = request.query["upload_id"][0]
    if name in uploaded:
        response.json(uploaded[name])
        return
    tell = response.json

    def json(told):
        if "name" in told:  # the object, not an error
            uploaded[name] = told
        tell(told)

    response.json = json
    plain_upload(request, response, storage, *args, **kwargs)


objects.upload_partial = upload_partial


def move(request, response, storage, *args, **kwargs):
    bucket = request.params["bucket_name"]
    source = request.params["object_id"]
    request.params["dest_bucket_name"] = bucket
    tell = response.json

    def json(copied):  # not called where there is no such object
        storage.delete_file(bucket, source)
        tell(copied["resource"])

    response.json = json
    objects.rewrite(request, response, storage)


move = conditional(move, lambda request: request.params["object_id"], "ifSourceGenerationMatch")

from gcp_storage_emulator import server  # noqa: E402  its table holds the handlers replaced above

MOVES = r"^/storage/v1/b/(?P<bucket_name>[-.\w]+)/o/(?P<object_id>.*[^/]+)/moveTo/o/(?P<dest_object_id>.*[^/]+)$"
server.HANDLERS = ((MOVES, {server.POST: move}), *server.HANDLERS)

if __name__ == "__main__":
    from gcp_storage_emulator.__main__ import main

    sys.exit(main())

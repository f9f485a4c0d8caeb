"""What can be asked of fit, as dataclasses whose fields hold help, kind and bounds (fields.py): the functions of api.py
build them from their arguments, the commands from flags of the same names."""

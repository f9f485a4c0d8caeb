"""What can be asked of fit: dataclasses whose fields hold help, kind and bounds. The functions of api.py build them
from their arguments, the commands from flags of the same names. fields.py has the kinds of fields; fits.py, plans.py
and searches.py what is asked."""
